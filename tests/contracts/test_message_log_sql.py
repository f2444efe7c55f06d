"""The outbox fulfils the contract of a message log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.errors import Conflict, StoreError
from paceline.messaging import LogEntry, Record
from paceline.sql import hints, outbox, outbox_looks
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.hints import Hints
from paceline.sql.outbox import OutboxSource, SqlOutbox
from paceline.sql.outbox_looks import Look, View
from paceline.sql.schema import now
from paceline.testing import eventually
from tests.contracts.message_log import MessageLogContract, publish, take, values

MOMENT = timedelta(seconds=0.3)


class TestSqlOutbox(MessageLogContract):
    @pytest.fixture(params=["sqlite", "postgresql"])
    async def opened(self, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
        url = (
            f"sqlite:///{request.getfixturevalue('tmp_path') / 'outbox.db'}"
            if request.param == "sqlite"
            else request.getfixturevalue("postgres_url")
        )
        opened = await database(url)
        yield opened
        await opened.close()

    @pytest.fixture
    async def log(self, opened: Database) -> AsyncIterator[SqlOutbox]:
        log = SqlOutbox(opened, poll_seconds=0.02)
        yield log
        await log.close()

    async def test_a_second_reader_waits_while_the_first_lives(self, log: SqlOutbox, topic: str) -> None:
        await publish(log, Record(topic, "k", "v"))
        first, second = await log.read(topic, "readers"), await log.read(topic, "readers")
        assert values(await take(first, 1)) == ["v"]
        assert await second.receive(1, 0.0) == []
        await first.close()
        assert values(await take(second, 1)) == ["v"]
        await second.close()

    async def test_a_dead_readers_lease_ends(self, log: SqlOutbox, opened: Database, topic: str) -> None:
        from paceline.durations import EPOCH
        from paceline.sql.outbox_tables import outbox_reader

        await publish(log, Record(topic, "k", "v"))
        dead, heir = await log.read(topic, "readers"), await log.read(topic, "readers")
        await take(dead, 1)
        assert await heir.receive(1, 0.0) == []
        await opened.write(lambda connection: connection.execute(sa.update(outbox_reader).values(leased_until=EPOCH)))
        assert values(await take(heir, 1)) == ["v"]
        await heir.close()

    async def test_idle_readers_send_few_statements(self, opened: Database, topic: str) -> None:
        looks = [Look(f"{topic}-{number}", f"me-{number}", 10, is_leased=True, renews=True) for number in range(4)]
        first = await opened.write(outbox_looks.lease_and_read, looks, outbox.LEASE)
        sent: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if not statement.startswith("BEGIN"):
                sent.append(statement.split()[0])

        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        try:
            again = await opened.write(outbox_looks.lease_and_read, looks, outbox.LEASE)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", note)
        assert sent == ["UPDATE", "SELECT", "SELECT"]
        assert first == again == dict.fromkeys(looks, View(is_leased=True, ids=[]))

    async def test_a_failed_publication_is_raised_to_its_caller_only(self, log: SqlOutbox, topic: str) -> None:
        (failure,) = await log.publish([Record("t" * 300, "k", "v")]) if log.database.dialect != "sqlite" else [None]
        assert log.database.dialect == "sqlite" or isinstance(failure, StoreError)
        await publish(log, Record(topic, "k", "v"))


class TestHints:
    """A reader that is notified need not poll. Here it would look again after an hour."""

    @pytest.fixture(autouse=True)
    def slow_poll(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "NOTIFIED_POLL_SECONDS", 3600.0)

    @pytest.fixture
    def url(self, request: pytest.FixtureRequest) -> str:
        if getattr(request, "param", "sqlite") == "postgresql":
            return str(request.getfixturevalue("postgres_url"))
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'outbox.db'}"

    @pytest.fixture
    async def log(self, url: str) -> AsyncIterator[SqlOutbox]:
        opened = await database(url)
        log = SqlOutbox(opened, poll_seconds=3600)
        yield log
        await log.close()
        await opened.close()

    @pytest.fixture
    async def elsewhere(self, log: SqlOutbox, url: str) -> AsyncIterator[SqlOutbox]:
        """The log of another process: it shares nothing but the database."""
        opened = Database(url)
        other = SqlOutbox(opened)
        yield other
        await other.close()
        await opened.close()

    async def waiting(self, log: SqlOutbox) -> tuple[OutboxSource, asyncio.Task[list[LogEntry]]]:
        """A reader that has looked, and a call that waits."""
        source = await log.read("t", "readers")
        reading = asyncio.create_task(source.receive(10, 60))
        await eventually(lambda: source._look_at > 0 and log.database.hints.are_received)
        source._new_records.clear()
        return source, reading

    async def test_a_record_of_this_process_wakes_the_reader(self, log: SqlOutbox) -> None:
        source, reading = await self.waiting(log)
        await publish(log, Record("t", "k", "v"))
        assert values(await asyncio.wait_for(reading, 10)) == ["v"]
        await source.close()

    @pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
    async def test_an_interrupted_reader_waits_neither_now_nor_in_its_next_call(self, log: SqlOutbox) -> None:
        source, reading = await self.waiting(log)
        source.interrupt()
        assert await asyncio.wait_for(reading, 10) == []
        assert await asyncio.wait_for(source.receive(10, 3600), 10) == []
        await source.close()

    async def test_a_record_is_taken_when_it_becomes_available(self, url: str) -> None:
        opened = await database(url)
        log = SqlOutbox(opened, poll_seconds=3600, reader_lease=timedelta(days=1))
        early = partial(outbox.append, records=[Record("t", "k", "v")], available_at=await opened.read(now) + MOMENT)
        await opened.write(early)
        source = await log.read("t", "readers")
        assert values(await source.receive(10, 30)) == ["v"]
        await source.close()
        await log.close()
        await opened.close()

    async def test_a_record_of_another_process_wakes_the_reader(self, log: SqlOutbox, elsewhere: SqlOutbox) -> None:
        source, reading = await self.waiting(log)
        await publish(elsewhere, Record("t", "k", "v"))
        assert values(await asyncio.wait_for(reading, 10)) == ["v"]
        await source.close()

    async def test_a_record_that_came_between_two_calls_is_taken_by_the_next(self, log: SqlOutbox) -> None:
        source, reading = await self.waiting(log)
        reading.cancel()
        await publish(log, Record("t", "k", "v"))
        await eventually(source._new_records.is_set)
        assert values(await source.receive(10, 0)) == ["v"]
        await source.close()

    async def test_a_full_reader_keeps_the_ring_for_its_next_call(self, log: SqlOutbox) -> None:
        source, reading = await self.waiting(log)
        reading.cancel()
        await publish(log, Record("t", "k", "v"))
        await eventually(source._new_records.is_set)
        assert await source.receive(0, 0) == []
        assert values(await source.receive(10, 0)) == ["v"]
        await source.close()

    async def test_a_transaction_that_is_rolled_back_notifies_nobody(
        self, log: SqlOutbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Hints, "_watch_commits", _watch_nothing)
        source, reading = await self.waiting(log)

        def append_and_fail(connection: Connection) -> None:
            outbox.append(connection, [Record("t", "k", "v")])
            raise Conflict("undone")

        with pytest.raises(Conflict):
            await log.database.write(append_and_fail)
        await log.database.read(lambda _: None)
        assert not source._new_records.is_set()
        reading.cancel()
        await source.close()

    async def test_a_reader_that_leaves_wakes_its_heir(self, log: SqlOutbox, elsewhere: SqlOutbox) -> None:
        first = await elsewhere.read("t", "readers")
        assert await first.receive(10, 0) == []
        heir, reading = await self.waiting(log)
        await publish(elsewhere, Record("t", "k", "v"))
        await first.close()
        assert values(await asyncio.wait_for(reading, 10)) == ["v"]
        await heir.close()

    async def test_without_notifications_the_reader_polls(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind a pooler that gives each transaction another connection, LISTEN succeeds and no notification
        arrives."""
        monkeypatch.setattr(hints, "notify", lambda _connection, _name: None)
        opened, other = await database(postgres_url), Database(postgres_url)
        source = await SqlOutbox(opened, poll_seconds=0.01).read("t", "readers")
        reading = asyncio.create_task(source.receive(10, 60))
        await eventually(lambda: source._look_at > 0)
        await other.write(outbox.append, [Record("t", "k", "v")])
        assert values(await asyncio.wait_for(reading, 10)) == ["v"]
        assert not opened.hints.are_received
        await source.close()
        await other.close()
        await opened.close()


async def _watch_nothing(hints: Hints) -> None:
    """Rings after no commit."""
    hints._is_listening = True
