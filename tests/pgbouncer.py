"""PgBouncer in transaction mode before a database, as a server of the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psycopg

from paceline.testing.servers.account import Account
from paceline.testing.servers.failures import ServerUnavailable
from paceline.testing.servers.server import HOST, Server

NEWER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline/pgbouncer-trixie"
"""Where `.ci/newer-pgbouncer` unpacks it."""


class PgBouncer(Server):
    """Debian 12's `pgbouncer`, from the PATH, or a newer one; with few connections to the server, so that clients share
    them."""

    name: ClassVar[str] = "pgbouncer"

    def __init__(self, postgres_port: int, *, newer: bool = False, pool_size: int = 4) -> None:
        super().__init__()
        program = str(NEWER / "pgbouncer") if newer else "pgbouncer"
        found = shutil.which(program)
        if found is None:
            hint = "run .ci/newer-pgbouncer" if newer else "Debian's package has one"
            raise ServerUnavailable(f"there is no {program}; {hint}")
        self._program = Path(found)
        self._newer = newer
        self._postgres_port = postgres_port
        self._pool_size = pool_size
        self._account = Account.if_root()

    @property
    def carries_statements(self) -> bool:
        """Whether prepared statements work in transaction mode: from 1.21 on, as configured by default from 1.24 on."""
        return self._newer

    def account(self) -> Account | None:
        return self._account

    def url(self, database: str) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def command(self) -> Sequence[str]:
        settings = {
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": self._pool_size,
            "max_client_conn": 500,
            "ignore_startup_parameters": "extra_float_digits",
        }
        lines = [
            "[databases]",
            f"* = host={HOST} port={self._postgres_port} user=postgres",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        file = self.directory / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)
        # The account that it runs under may not read where it was unpacked.
        if not self._newer:
            return [str(shutil.copy(self._program, str(self.directory / "pgbouncer"))), str(file)]
        unpacked = shutil.copytree(self._program.parent, self.directory / "unpacked", dirs_exist_ok=True)
        # By the loader of its own libc.
        (loader,) = unpacked.glob("ld-linux*.so.*")
        return [str(loader), "--library-path", str(unpacked), str(unpacked / "pgbouncer"), str(file)]

    def answers(self) -> bool:
        with psycopg.connect(self.url("postgres"), connect_timeout=2, prepare_threshold=None) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
