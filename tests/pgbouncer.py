"""PgBouncer in transaction mode before a database, as a server of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import ClassVar

import psycopg

from paceline.testing.servers.account import Account
from paceline.testing.servers.failures import ServerUnavailable
from paceline.testing.servers.server import HOST, Server


class PgBouncer(Server):
    """Debian's `pgbouncer`, from the PATH; with few connections to the server, so that clients share them."""

    name: ClassVar[str] = "pgbouncer"

    def __init__(self, postgres_port: int, *, pool_size: int = 4) -> None:
        super().__init__()
        self._program = shutil.which("pgbouncer")
        if self._program is None:
            raise ServerUnavailable("there is no pgbouncer on the PATH; Debian's package has one")
        self._postgres_port = postgres_port
        self._pool_size = pool_size
        self._account = Account.if_root()

    def account(self) -> Account | None:
        return self._account

    def url(self, database: str) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def command(self) -> Sequence[str]:
        assert self._program is not None
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
        program = self.directory / "pgbouncer"
        shutil.copy(self._program, program)
        return [str(program), str(file)]

    def answers(self) -> bool:
        with psycopg.connect(self.url("postgres"), connect_timeout=2, prepare_threshold=None) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
