"""An accepted message that is in no place is found, and queued, in every database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.dispatch.stores.tables import queue
from paceline.messaging import Record
from paceline.sql.engine import Database
from paceline.sql.outbox_tables import outbox
from paceline_sms.items import ITEM_TYPES
from paceline_sms.model import Attempt
from paceline_sms.ports import DeliveryOutcome, Status
from paceline_sms.stores.following import MessageFollower
from paceline_sms.stores.quota_statements import Way
from paceline_sms.stores.sql import SqlDeliveryStore, SqlQuotaStore
from tests.every_schema import database

TOPIC = "t"
NOW = timedelta(milliseconds=-1)
"""An age that every message has."""


class Gateway:
    """With Kafka: what is accepted goes through the outbox."""

    def __init__(self, opened: Database) -> None:
        self.database = opened
        self.quotas = SqlQuotaStore(opened, way=Way(TOPIC))
        followers = {name: MessageFollower(name, expiry=timedelta(hours=1)) for name in ITEM_TYPES}
        self.messages = SqlDeliveryStore(opened, topic=TOPIC, followers=followers)

    async def accept(self, text: str) -> Attempt:
        attempt = Attempt.of(7, text)
        (verdict,) = await self.quotas.admit([attempt])
        assert not isinstance(verdict, Exception)
        assert verdict.allowed
        return attempt

    async def suspects(self) -> list[str]:
        return await self.messages.suspects(NOW, 10)

    async def items(self) -> list[str]:
        query = sa.select(queue.c.item_id).order_by(queue.c.item_id)
        return await self.database.read(lambda connection: list(connection.execute(query).scalars()))

    async def lose(self) -> None:
        await self.database.write(lambda connection: connection.execute(outbox.delete()))

    def record(self, attempt: Attempt) -> Record:
        return Record(TOPIC, "7", attempt.to_message(0, 10**12).to_record_value())


@pytest.fixture(params=["sqlite", "postgres"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    opened = await database(url)
    served = Gateway(opened)
    await served.quotas.configure(7, 100, 10)
    yield served
    await opened.close()


async def test_what_the_outbox_has_is_not_lost(gateway: Gateway) -> None:
    await gateway.accept("waits")
    assert await gateway.suspects() == []


async def test_what_is_in_no_place_is_queued_once(gateway: Gateway) -> None:
    attempts = [await gateway.accept("one"), await gateway.accept("two")]
    lost = sorted(attempt.message_id for attempt in attempts)
    await gateway.lose()
    await gateway.accept("three")
    suspects = await gateway.suspects()
    assert sorted(suspects) == lost
    assert sorted(await gateway.messages.requeue(suspects)) == lost
    assert await gateway.messages.requeue(suspects) == []
    assert await gateway.items() == lost
    assert await gateway.suspects() == []


async def test_what_has_an_item_or_an_outcome_is_not_lost(gateway: Gateway) -> None:
    queued, sent, taken = [await gateway.accept(text) for text in ("queued", "sent", "taken in since")]
    await gateway.lose()
    before = await gateway.suspects()
    assert taken.message_id in before
    records = [gateway.record(attempt) for attempt in (queued, sent, taken)]
    assert (await gateway.messages.take_in(records)).duplicates == 0
    await gateway.messages.settle([DeliveryOutcome(sent.message_id, Status.SENT, 1)])
    assert await gateway.suspects() == []
    assert await gateway.messages.requeue(before) == []


async def test_a_record_that_comes_again_is_queued_once(gateway: Gateway) -> None:
    attempt = await gateway.accept("once")
    foreign = Record(TOPIC, "8", '{"userId": 8, "message": "of another program", "messageId": "foreign"}')
    records = [gateway.record(attempt), foreign, gateway.record(attempt)]
    assert [(await gateway.messages.take_in(records)).duplicates for _ in range(2)] == [1, 3]
    assert await gateway.items() == sorted([attempt.message_id, "foreign"])
    unreadable = Record(TOPIC, "8", "not a message")
    taken = [await gateway.messages.take_in([unreadable]) for _ in range(2)]
    assert [len(one.letters) for one in taken] == [1, 0]


async def test_what_is_cancelled_before_it_is_queued_is_never_queued(gateway: Gateway) -> None:
    attempt = await gateway.accept("never mind")
    await gateway.lose()
    cancelled = await gateway.messages.cancel(attempt.message_id)
    assert cancelled is not None
    assert (cancelled.message.status, cancelled.refusal) == (Status.CANCELLED, None)
    assert (await gateway.messages.take_in([gateway.record(attempt)])).duplicates == 1
    assert await gateway.items() == []


async def test_a_text_is_kept_in_one_place_only(gateway: Gateway) -> None:
    attempt = await gateway.accept("secret")
    query = sa.text("SELECT record FROM paceline_notification_message")

    async def records() -> list[str | None]:
        return await gateway.database.read(lambda connection: list(connection.execute(query).scalars()))

    assert "secret" in str((await records())[0])
    await gateway.messages.take_in([gateway.record(attempt)])
    assert await records() == [None]
