"""Starts child processes that end with this process, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from paceline.locks import Lock
from paceline.testing.servers import reaper
from paceline.testing.servers.account import Account


class ProcessGroup:
    """The process group of all servers, led by one reaper process, which is started with the first server.

    A pipe, not the kernel's parent-death signal, ends the reaper: that signal fires when the *thread*
    that started a server ends, is lost when the server changes its user, and reaches no grandchildren.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reaper: subprocess.Popen[str] | None = None
        self._owner = 0

    def _running_reaper(self) -> subprocess.Popen[str]:
        # After a fork the pipe is shared with the parent: this process needs its own reaper.
        if self._reaper is None or self._owner != os.getpid() or self._reaper.poll() is not None:
            self._owner = os.getpid()
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                process_group=0,
            )
            atexit.register(self._stop_reaper, self._owner)
        return self._reaper

    def _stop_reaper(self, owner: int) -> None:
        """At a normal exit: lets the reaper kill what is left, and waits for it."""
        if self._reaper is None or owner != os.getpid():
            return
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reaper.wait(10)

    def directory(self, prefix: str, account: Account | None = None) -> Path:
        """A new directory, owned by `account`, that is removed when we are gone."""
        root = account.reachable_directory() if account else None
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        if account:
            os.chown(path, account.uid, account.gid)
        with self._lock:
            pipe = self._running_reaper().stdin
            assert pipe is not None
            pipe.write(f"{path}\n")
            pipe.flush()
        return path

    def start(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        log: IO[bytes],
        environment: Mapping[str, str],
        account: Account | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts `command` in `directory`; it is killed when we are gone."""
        with self._lock:
            group = self._running_reaper().pid
            return subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                process_group=group,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )


process_group = ProcessGroup()
