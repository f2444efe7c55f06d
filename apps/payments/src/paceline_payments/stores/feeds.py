"""Feeds in a database: the `FeedStore` port, with its statements, written once for SQLite, PostgreSQL and Oracle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption, decrypted_bytes, hidden, hidden_bytes, revealed
from paceline.sql.counting import count_up_to
from paceline.sql.engine import Database
from paceline.sql.prefix import begins_with
from paceline.sql.schema import now as database_clock
from paceline_payments.feeds.model import Feed, FeedReject, FeedState, Figures, Totals
from paceline_payments.stores.tables import feed, feed_chunk, feed_reject, payment

MAX_REASON = 2000
"""Characters of a reason that are kept."""


class SqlFeedStore:
    """Feeds in SQLite, PostgreSQL or Oracle, in the database that also holds the payments."""

    def __init__(self, database: Database, *, encryption: Encryption | None = None) -> None:
        self._database = database
        self._encryption = encryption

    async def open(
        self, feed_id: str, format: str, name: str | None, config_name: str | None, by: str | None = None
    ) -> None:
        await self._database.write(_open, feed_id, format, name, config_name, by)

    async def stage(self, feed_id: str, number: int, payload: bytes, rejects: Sequence[FeedReject]) -> None:
        await self._database.write(_stage, feed_id, number, payload, rejects, self._encryption)

    async def drop(self, feed_id: str, reason: str) -> None:
        await self._database.write(_drop, feed_id, reason, self._encryption)

    async def complete(
        self,
        feed_id: str,
        digest: str,
        figures: Figures,
        name: str | None,
        document: Mapping[str, str],
        *,
        hold: bool = False,
    ) -> str:
        text = hidden(self._encryption, json.dumps(document), "feed", feed_id, "document")
        return await self._database.write(_complete, feed_id, digest, figures, name, text, hold)

    async def release(self, feed_id: str, by: str) -> bool:
        return await self._database.write(_release, feed_id, by)

    async def claim(self, runner: str, lease: timedelta, feed_id: str | None = None) -> Feed | None:
        row = await self._database.write(_claim, runner, lease, feed_id)
        return None if row is None else self._record(row)

    async def unclaim(self, feed_id: str, runner: str) -> None:
        await self._database.write(_unclaim, feed_id, runner)

    async def chunk(self, feed_id: str, number: int) -> bytes | None:
        payload = await self._database.read(_chunk, feed_id, number)
        return None if payload is None else decrypted_bytes(self._encryption, payload, "chunk", feed_id, number)

    async def advance(self, feed_id: str, runner: str, number: int, rejects: Sequence[FeedReject]) -> bool:
        return await self._database.write(_advance, feed_id, runner, number, rejects, self._encryption)

    async def finish(self, feed_id: str, runner: str) -> bool:
        return await self._database.write(_finish, feed_id, runner)

    async def cancel(self, feed_id: str, reason: str) -> Feed | None:
        row = await self._database.write(_cancel, feed_id, reason)
        return None if row is None else self._record(row)

    async def find(self, feed_id: str) -> Feed | None:
        row = await self._database.read(_find, feed_id)
        return None if row is None else self._record(row)

    async def page(
        self,
        limit: int,
        after: str | None,
        state: FeedState | None = None,
        prefix: str | None = None,
        *,
        oldest_first: bool = False,
    ) -> list[Feed]:
        return [
            self._record(row) for row in await self._database.read(_page, limit, after, state, prefix, oldest_first)
        ]

    async def count_matching(self, state: FeedState | None, prefix: str | None, at_most: int) -> int:
        return await self._database.read_aside(_count_matching, state, prefix, at_most)

    async def prune(self, before: datetime) -> int:
        return await self._database.write(_prune, before)

    async def rejects(self, feed_id: str, after: int, limit: int) -> list[FeedReject]:
        return await self._database.read(_rejects, feed_id, after, limit, self._encryption)

    def _record(self, row: Row[Any]) -> Feed:
        own = "feed", row.feed_id
        document = revealed(self._encryption, row.document or "{}", *own, "document")
        reason = None if row.reason is None else revealed(self._encryption, row.reason, *own, "reason")
        return _record(row, document if document.startswith("{") else "{}", reason)


def _open(
    connection: Connection, feed_id: str, format: str, name: str | None, config_name: str | None, by: str | None
) -> None:
    moment = database_clock(connection)
    connection.execute(
        sa.insert(feed).values(
            feed_id=feed_id,
            format=format,
            state=FeedState.RECEIVING.value,
            name=name,
            config_name=config_name,
            submitted_by=by,
            records=0,
            chunks=0,
            chunks_done=0,
            rejected=0,
            accepted=0,
            created_at=moment,
            updated_at=moment,
        )
    )


def _stage(
    connection: Connection,
    feed_id: str,
    number: int,
    payload: bytes,
    rejects: Sequence[FeedReject],
    encryption: Encryption | None,
) -> None:
    _leave_to_next_commit(connection)
    stored = hidden_bytes(encryption, payload, "chunk", feed_id, number)
    connection.execute(sa.insert(feed_chunk).values(feed_id=feed_id, chunk=number, payload=stored))
    _insert_rejects(connection, feed_id, rejects, encryption)


def _leave_to_next_commit(connection: Connection) -> None:
    """Turns off PostgreSQL's synchronous commit for this transaction. A staged chunk counts once the feed is complete,
    whose commit follows; a chunk that was accepted and not recorded is accepted again, which is idempotent."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit = off")


def _insert_rejects(
    connection: Connection, feed_id: str, rejects: Sequence[FeedReject], encryption: Encryption | None
) -> None:
    if rejects:
        rows = [
            {
                "feed_id": feed_id,
                "line": line,
                "reason": hidden(encryption, reason[:MAX_REASON], "reject", feed_id, line, "reason"),
                "payment_id": payment_id,
                "raw": hidden(encryption, raw or " ", "reject", feed_id, line, "raw"),
            }
            for line, reason, payment_id, raw in rejects
        ]
        connection.execute(sa.insert(feed_reject), rows)


def _drop(connection: Connection, feed_id: str, reason: str, encryption: Encryption | None) -> None:
    stored = hidden(encryption, reason[:MAX_REASON], "feed", feed_id, "reason")
    for table in (feed_chunk, feed_reject):
        connection.execute(sa.delete(table).where(table.c.feed_id == feed_id))
    _change(connection, feed_id, FeedState.RECEIVING, state=FeedState.REFUSED.value, reason=stored)


def _complete(
    connection: Connection,
    feed_id: str,
    digest: str,
    figures: Figures,
    name: str | None,
    document: str | None,
    hold: bool,
) -> str:
    same = connection.execute(
        sa.select(feed.c.feed_id, feed.c.state, feed.c.rejected).where(feed.c.digest == digest)
    ).one_or_none()
    if same is not None and same.state == FeedState.DONE.value and same.rejected:
        # Records that were rejected then may be accepted now: a full horizon, a rule. The others are found as
        # duplicates.
        connection.execute(sa.update(feed).where(feed.c.feed_id == same.feed_id).values(digest=None))
    elif same is not None:
        for table in (feed_chunk, feed_reject, feed):
            connection.execute(sa.delete(table).where(table.c.feed_id == feed_id))
        return str(same.feed_id)
    _change(
        connection,
        feed_id,
        FeedState.RECEIVING,
        state=(FeedState.HELD if hold else FeedState.ACCEPTING).value,
        digest=digest,
        name=name,
        records=figures.records,
        chunks=figures.chunks,
        rejected=figures.rejected,
        planned=json.dumps(figures.totals.amounts()),
        document=document,
    )
    return feed_id


def _release(connection: Connection, feed_id: str, by: str) -> bool:
    # A feed without a submitter is not released, either: NULL differs from nothing.
    is_second_person = feed.c.submitted_by != by
    return _change(
        connection, feed_id, FeedState.HELD, is_second_person, state=FeedState.ACCEPTING.value, released_by=by
    )


def _claim(connection: Connection, runner: str, lease: timedelta, feed_id: str | None) -> Row[Any] | None:
    moment = database_clock(connection)
    free = sa.or_(feed.c.runner.is_(None), feed.c.runner == runner, feed.c.seen_at < moment - lease)
    statement = sa.select(feed.c.feed_id).where(feed.c.state == FeedState.ACCEPTING.value, free)
    if feed_id is not None:
        statement = statement.where(feed.c.feed_id == feed_id)
    chosen = connection.execute(statement.order_by(feed.c.created_at, feed.c.feed_id).limit(1)).scalar()
    if chosen is None:
        return None
    taken = connection.execute(
        sa.update(feed)
        .where(feed.c.feed_id == chosen, feed.c.state == FeedState.ACCEPTING.value, free)
        .values(runner=runner, seen_at=moment)
    )
    return _find(connection, chosen) if taken.rowcount == 1 else None


def _unclaim(connection: Connection, feed_id: str, runner: str) -> None:
    connection.execute(sa.update(feed).where(feed.c.feed_id == feed_id, feed.c.runner == runner).values(runner=None))


def _chunk(connection: Connection, feed_id: str, number: int) -> bytes | None:
    payload: bytes | None = connection.execute(
        sa.select(feed_chunk.c.payload).where(feed_chunk.c.feed_id == feed_id, feed_chunk.c.chunk == number)
    ).scalar()
    return payload


def _advance(
    connection: Connection,
    feed_id: str,
    runner: str,
    number: int,
    rejects: Sequence[FeedReject],
    encryption: Encryption | None,
) -> bool:
    _leave_to_next_commit(connection)
    moment = database_clock(connection)
    done = connection.execute(
        sa.update(feed)
        .where(
            feed.c.feed_id == feed_id,
            feed.c.runner == runner,
            feed.c.state == FeedState.ACCEPTING.value,
            feed.c.chunks_done == number - 1,
        )
        .values(chunks_done=number, rejected=feed.c.rejected + len(rejects), seen_at=moment, updated_at=moment)
    )
    if done.rowcount != 1:
        return False
    _insert_rejects(connection, feed_id, rejects, encryption)
    connection.execute(sa.delete(feed_chunk).where(feed_chunk.c.feed_id == feed_id, feed_chunk.c.chunk == number))
    return True


def _finish(connection: Connection, feed_id: str, runner: str) -> bool:
    totals = _brought(connection, feed_id)
    return _change(
        connection,
        feed_id,
        FeedState.ACCEPTING,
        feed.c.runner == runner,
        state=FeedState.DONE.value,
        accepted=sum(totals.count.values()),
        totals=json.dumps(totals.amounts()),
        runner=None,
    )


def _brought(connection: Connection, feed_id: str) -> Totals:
    """The payments of the feed: counted from their rows, so that a crash counts none of them twice."""
    totals = Totals()
    rows = connection.execute(
        sa.select(payment.c.currency, sa.func.count(), sa.func.sum(payment.c.amount_minor))
        .where(payment.c.feed_id == feed_id)
        .group_by(payment.c.currency)
    )
    for currency, count, minor in rows:
        totals.add(currency, int(minor), count)
    return totals


def _cancel(connection: Connection, feed_id: str, reason: str) -> Row[Any] | None:
    totals = _brought(connection, feed_id)
    values = {"state": FeedState.CANCELLED.value, "reason": reason, "runner": None}
    figures = {"accepted": sum(totals.count.values()), "totals": json.dumps(totals.amounts())}
    for before in (FeedState.HELD, FeedState.ACCEPTING):
        _change(connection, feed_id, before, **values, **figures)
    # Its figures stay: payments may have been pruned since it was done.
    _change(connection, feed_id, FeedState.DONE, **values)
    connection.execute(sa.delete(feed_chunk).where(feed_chunk.c.feed_id == feed_id))
    return _find(connection, feed_id)


def _change(
    connection: Connection, feed_id: str, before: FeedState, *conditions: sa.ColumnElement[bool], **values: Any
) -> bool:
    changed = connection.execute(
        sa.update(feed)
        .where(feed.c.feed_id == feed_id, feed.c.state == before.value, *conditions)
        .values(**values, updated_at=database_clock(connection))
    )
    return changed.rowcount == 1


def _find(connection: Connection, feed_id: str) -> Row[Any] | None:
    return connection.execute(sa.select(feed).where(feed.c.feed_id == feed_id)).one_or_none()


def _page(
    connection: Connection,
    limit: int,
    after: str | None,
    state: FeedState | None,
    prefix: str | None,
    oldest_first: bool,
) -> Sequence[Row[Any]]:
    created, feed_id = feed.c.created_at, feed.c.feed_id
    order = (created, feed_id) if oldest_first else (created.desc(), feed_id.desc())
    statement = sa.select(feed).where(*_conditions(state, prefix)).order_by(*order).limit(limit)
    if after is not None:
        last = connection.execute(sa.select(created).where(feed_id == after)).scalar()
        if last is None:
            return []
        if oldest_first:
            statement = statement.where(sa.or_(created > last, sa.and_(created == last, feed_id > after)))
        else:
            statement = statement.where(sa.or_(created < last, sa.and_(created == last, feed_id < after)))
    return connection.execute(statement).all()


def _count_matching(connection: Connection, state: FeedState | None, prefix: str | None, at_most: int) -> int:
    return count_up_to(connection, feed, at_most, *_conditions(state, prefix))


def _conditions(state: FeedState | None, prefix: str | None) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if state is not None:
        conditions.append(feed.c.state == state.value)
    if prefix is not None:
        conditions.append(sa.or_(*(begins_with(column, prefix) for column in (feed.c.feed_id, feed.c.name))))
    return conditions


def _prune(connection: Connection, before: datetime) -> int:
    left = sa.select(payment.c.payment_id).where(payment.c.feed_id == feed.c.feed_id)
    old = list(
        connection.execute(
            sa.select(feed.c.feed_id).where(
                feed.c.updated_at < before,
                feed.c.state.not_in([FeedState.HELD.value, FeedState.ACCEPTING.value]),
                ~left.exists(),
            )
        ).scalars()
    )
    for feed_id in old:
        for table in (feed_chunk, feed_reject, feed):
            connection.execute(sa.delete(table).where(table.c.feed_id == feed_id))
    return len(old)


def _rejects(
    connection: Connection, feed_id: str, after: int, limit: int, encryption: Encryption | None
) -> list[FeedReject]:
    rows = connection.execute(
        sa.select(feed_reject.c.line, feed_reject.c.reason, feed_reject.c.payment_id, feed_reject.c.raw)
        .where(feed_reject.c.feed_id == feed_id, feed_reject.c.line > after)
        .order_by(feed_reject.c.line)
        .limit(limit)
    )
    return [
        FeedReject(
            line,
            revealed(encryption, reason, "reject", feed_id, line, "reason"),
            payment_id,
            revealed(encryption, raw, "reject", feed_id, line, "raw"),
        )
        for line, reason, payment_id, raw in rows
    ]


def _record(row: Row[Any], document: str, reason: str | None) -> Feed:
    # A feed's payments are counted when it ends; before that, and for dropped chunks, the totals are unknown.
    is_counted = row.state in (FeedState.DONE.value, FeedState.CANCELLED.value) and row.chunks_done == row.chunks
    return Feed(
        row.feed_id,
        row.format,
        FeedState(row.state),
        row.name,
        row.config_name,
        row.records,
        row.chunks,
        row.chunks_done,
        row.rejected,
        row.accepted,
        max(0, row.records - row.rejected - row.accepted) if is_counted else 0,
        json.loads(row.planned or "{}"),
        json.loads(row.totals or "{}"),
        reason,
        row.created_at,
        row.updated_at,
        json.loads(document),
        row.submitted_by,
        row.released_by,
    )
