"""The unprivileged account of servers that refuse to run as root."""

from __future__ import annotations

import os
import pwd
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paceline.testing.servers.failures import ServerUnavailable


@dataclass(frozen=True)
class Account:
    """A user other than root."""

    uid: int
    gid: int

    @staticmethod
    def if_root() -> Account | None:
        """An account to step down to; None when we are not root and need none."""
        if os.geteuid() != 0:
            return None
        for name in ("nobody", "daemon", "postgres"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            if entry.pw_uid != 0:
                return Account(entry.pw_uid, entry.pw_gid)
        raise ServerUnavailable("running as root, and there is no unprivileged user (nobody, daemon) to step down to")

    def reaches(self, path: Path) -> bool:
        """Whether the account may enter every directory above `path`."""
        return all(self._may_enter(parent) for parent in path.resolve().parents)

    def _may_enter(self, directory: Path) -> bool:
        status = directory.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)

    def reachable_directory(self) -> Path:
        """A directory for temporary files that the account can reach."""
        for candidate in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if Path(candidate).is_dir() and self.reaches(Path(candidate) / "any"):
                return Path(candidate)
        raise ServerUnavailable("no directory for temporary files that an unprivileged user can reach")
