"""The outbox keeps the promises of a message log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.errors import StoreError
from headgate.messaging import Record
from headgate.sql.databases import database
from headgate.sql.engine import Database
from headgate.sql.outbox import SqlOutbox
from tests.contracts.message_log import MessageLogContract, publish, take, values


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
        import sqlalchemy as sa

        from headgate.durations import EPOCH
        from headgate.sql.outbox_tables import outbox_reader

        await publish(log, Record(topic, "k", "v"))
        dead, heir = await log.read(topic, "readers"), await log.read(topic, "readers")
        await take(dead, 1)
        assert await heir.receive(1, 0.0) == []
        await opened.write(lambda connection: connection.execute(sa.update(outbox_reader).values(leased_until=EPOCH)))
        assert values(await take(heir, 1)) == ["v"]
        await heir.close()

    async def test_a_failed_publication_is_told_to_its_caller_only(self, log: SqlOutbox, topic: str) -> None:
        (failure,) = await log.publish([Record("t" * 300, "k", "v")]) if log.database.dialect != "sqlite" else [None]
        assert log.database.dialect == "sqlite" or isinstance(failure, StoreError)
        await publish(log, Record(topic, "k", "v"))
