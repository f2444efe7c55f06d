"""A PostgreSQL with a standby that takes over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from paceline.testing.servers.group import ServerGroup
from paceline.testing.servers.postgres import USER, PostgresServer
from paceline.testing.servers.server import HOST


class PostgresStandby(PostgresServer):
    """A server that starts out as a copy of `primary` and follows it by streaming replication."""

    def __init__(self, primary: PostgresServer, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        self._primary = primary

    def make_data(self) -> None:
        source = f"host={HOST} port={self._primary.port} user={USER}"
        options = ["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]
        self.run_program("pg_basebackup", "--pgdata", self.data, "--dbname", source, *options)


class PostgresPair(ServerGroup):
    """A primary and a hot standby. With `synchronous=True` a commit is acknowledged when both have it on disk, so
    that no acknowledged transaction is lost when the standby is promoted; commits wait while the standby is down."""

    name = "postgres pair"

    def __init__(self, *, synchronous: bool = True, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.synchronous = synchronous
        self.primary = PostgresServer(settings=settings)
        self.standby = PostgresStandby(self.primary, settings)

    def members(self) -> Sequence[PostgresServer]:
        return [self.primary, self.standby]

    def form(self) -> None:
        if self.synchronous:
            # After the copy was made: the standby, once promoted, must not wait for another.
            with psycopg.connect(self.primary.url, autocommit=True, connect_timeout=10) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")

    def is_whole(self) -> bool:
        with psycopg.connect(self.primary.url, autocommit=True, connect_timeout=10) as connection:
            states = connection.execute("SELECT state, sync_state FROM pg_stat_replication").fetchall()
        return states == [("streaming", "sync" if self.synchronous else "async")]

    def promote(self) -> None:
        """Makes the standby a primary; returns when it takes writes. Kill or pause the primary first: nothing here
        fences an old primary."""
        with psycopg.connect(self.standby.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, with both hosts: connections go to the one that takes writes."""
        return f"postgresql://{USER}@{self.primary.address},{self.standby.address}/{database}"
