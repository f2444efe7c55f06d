"""An accepted message that is in no place is found, and queued again, in every database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.messaging import Record
from paceline.sql.engine import Database
from paceline.sql.outbox_tables import outbox
from paceline_sms.model import Attempt
from paceline_sms.ports import DeliveryOutcome, Parking, Status, Suspect
from paceline_sms.stores.sql import SqlDeliveryStore, SqlQuotaStore
from paceline_sms.topics import parked_topic
from tests.every_schema import database

TOPIC = "t"
NOW = timedelta(milliseconds=-1)
"""An age that every message has."""


class Gateway:
    def __init__(self, opened: Database) -> None:
        self.database = opened
        self.quotas = SqlQuotaStore(opened, topic=TOPIC)
        self.messages = SqlDeliveryStore(opened, topic=TOPIC, lease=timedelta(seconds=10))

    async def accept(self, text: str) -> Attempt:
        attempt = Attempt.of(7, text)
        (verdict,) = await self.quotas.admit([attempt])
        assert not isinstance(verdict, Exception)
        assert verdict.allowed
        return attempt

    async def suspects(self) -> list[Suspect]:
        return await self.messages.suspects(NOW, 10)

    async def boxed(self) -> list[str]:
        query = sa.select(outbox.c.message_value).where(outbox.c.topic == TOPIC).order_by(outbox.c.id)
        values = await self.database.read(lambda connection: list(connection.execute(query).scalars()))
        return [json.loads(value)["message"] for value in values]

    async def lose(self) -> None:
        await self.database.write(lambda connection: connection.execute(outbox.delete()))


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


async def test_what_is_in_no_place_is_queued_again_once(gateway: Gateway) -> None:
    attempts = [await gateway.accept("one"), await gateway.accept("two")]
    await gateway.lose()
    await gateway.accept("three")
    suspects = await gateway.suspects()
    assert {suspect.message_id for suspect in suspects} == {attempt.message_id for attempt in attempts}
    assert sorted(await gateway.messages.requeue(suspects)) == sorted(attempt.message_id for attempt in attempts)
    assert await gateway.messages.requeue(suspects) == []
    assert sorted(await gateway.boxed()) == ["one", "three", "two"]
    assert await gateway.suspects() == []


async def test_what_a_sender_has_or_has_put_off_is_not_lost(gateway: Gateway) -> None:
    attempts = [await gateway.accept(text) for text in ("held", "put off", "sent", "taken since")]
    held, put_off, sent, taken = [attempt.to_message(0, 10**12) for attempt in attempts]
    await gateway.lose()
    (before,) = [suspect for suspect in await gateway.suspects() if suspect.message_id == taken.message_id]
    await gateway.messages.claim([held, put_off, sent, taken], "sender")
    record = Record(parked_topic(TOPIC), "7", put_off.to_record_value())
    await gateway.messages.park([(record, 10**13)], {put_off.message_id: Parking(1)}, "sender")
    await gateway.messages.settle([DeliveryOutcome(sent.message_id, Status.SENT, 1)])
    assert await gateway.suspects() == []
    await gateway.messages.release([taken.message_id], "sender")
    assert await gateway.messages.requeue([before]) == []


async def test_a_text_is_kept_no_longer_than_it_may_be_needed(gateway: Gateway) -> None:
    attempt = await gateway.accept("secret")
    await gateway.messages.claim([attempt.to_message(0, 10**12)], "sender")
    await gateway.messages.settle([DeliveryOutcome(attempt.message_id, Status.SENT, 1)])
    query = sa.text("SELECT record FROM paceline_notification_message")
    assert await gateway.database.read(lambda connection: list(connection.execute(query).scalars())) == [None]
