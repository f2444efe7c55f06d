"""Connections to PostgreSQL that one test leaves to the next.

For a connection the server starts a process, which reads the catalogs of every table that it is asked about: more work
than most tests make. So those to a database that is lent to one test after the other are kept when they are closed, as
a pooler at the server would keep them: nothing is left of the session, and the driver's object, which the test has, is
as closed as ever.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from psycopg import AsyncConnection, pq

MOST = 8
"""Of one database, opened in one way."""


class Kept(NamedTuple):
    parameters: set[str]
    """Of connections to the database itself. Those through a proxy are not kept: it may be in this very thread, and
    would not pass on what `_close` waits for."""
    idle: dict[str, list[Any]]
    """libpq's connections, by all parameters that they were opened with."""


_databases: dict[str, Kept] = {}
_usual_opening = AsyncConnection._connect_gen.__func__  # type: ignore[attr-defined]
_usual_close = AsyncConnection.close
_ended = pq.PGconn.connect_start(b"host=/nowhere")
_ended.finish()


def keep(database: str, port: int) -> None:
    """From now on, this process keeps its connections to the database."""
    if AsyncConnection.close is _usual_close:
        AsyncConnection._connect_gen = classmethod(_open)  # type: ignore[assignment, method-assign]
        AsyncConnection.close = _close  # type: ignore[assignment, method-assign]
        os.register_at_fork(after_in_child=_databases.clear)  # a child would talk on its parent's connections
    _databases[database] = Kept({f"dbname={database}", f"port={port}"}, {})


def backends(database: str) -> list[int]:
    """The ids of the server's processes of those that are idle."""
    return [link.backend_pid for links in _databases[database].idle.values() for link in links]


def forget(database: str) -> None:
    """Closes those to a database that will be dropped."""
    for links in _databases.pop(database).idle.values():
        for link in links:
            link.finish()


def _open(cls: type[AsyncConnection[Any]], conninfo: str = "") -> Any:
    given = set(conninfo.split())
    kept = next((kept for kept in _databases.values() if kept.parameters <= given), None)
    if kept is None:
        return (yield from _usual_opening(cls, conninfo))
    links = kept.idle.setdefault(conninfo, [])
    while links:
        link = links.pop()
        if _answers(link, b"SELECT 1"):
            connection = cls(link)
            break
        link.finish()
    else:
        connection = yield from _usual_opening(cls, conninfo)
    vars(connection)["kept_in"] = links
    return connection


async def _close(connection: AsyncConnection[Any]) -> None:
    link = connection.pgconn
    links = vars(connection).pop("kept_in", None)
    if (
        links is None
        or connection.closed
        or len(links) >= MOST
        or link.pipeline_status
        or link.transaction_status == pq.TransactionStatus.ACTIVE
        or not _answers(link, b"ROLLBACK")
        or not _answers(link, b"DISCARD ALL")
    ):
        await _usual_close(connection)
        return
    connection.pgconn = _ended
    connection._closed = True
    links.append(link)


def _answers(link: Any, statement: bytes) -> bool:
    return link.exec_(statement).status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
