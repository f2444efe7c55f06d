"""Properties 1 to 7 of the SMS gateway, on every message log: the SQL path."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import parse_instant
from paceline.testing import KafkaServer, eventually
from paceline_sms.settings import SmsSettings
from tests import effort
from tests.integration.notification_gateway import (
    LOGS,
    Gateway,
    examples,
    gateway,
    gateways,
    in_this_loop,
    messages,
    new_user,
    stores,
)

LARGEST = 2**31 - 1
limits = st.integers(1, 50)
windows = st.integers(1, 10_000)


@pytest.fixture(params=LOGS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    async with gateway(**stores(request, request.param)) as opened:
        yield opened


@examples
@given(st.integers(0, LARGEST), st.integers(1, LARGEST), st.integers(1, LARGEST), limits)
async def test_property_1_a_configuration_is_kept_and_starts_a_new_window(
    served: Gateway, user: int, limit: int, window: int, other: int
) -> None:
    for rate_limit in (limit, other):  # an insert or an update, then surely an update
        before = datetime.now(UTC)
        answer = await served.configure(user, rate_limit, window)
        assert answer.status_code == 200
        row = await served.row(user)
        assert (row.user_id, row.rate_limit, row.time_window, row.current_count) == (user, rate_limit, window, 0)
        assert before - timedelta(seconds=1) <= row.last_refresh_time <= datetime.now(UTC) + timedelta(seconds=1)
        body = answer.json()
        assert parse_instant(body.pop("lastRefreshTime")) == row.last_refresh_time
        assert body == {"userId": user, "rateLimit": rate_limit, "timeWindow": window, "currentCount": 0}
        await served.set(user, current_count=7)


invalid_integers: st.SearchStrategy[object] = st.one_of(
    st.integers(max_value=-1),
    st.integers(min_value=LARGEST + 1),
    st.sampled_from([None, True, False, "1", "", 1.5, [], {}, [1]]),
    st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer()),
)


@examples
@given(st.data())
async def test_property_2_an_invalid_configuration_is_refused_and_changes_nothing(
    served: Gateway, data: st.DataObject
) -> None:
    good = {"userId": 5, "rateLimit": 3, "timeWindow": 2}
    if not await served.rows():
        assert (await served.configure(*good.values())).status_code == 200
    before = await served.rows()
    broken = data.draw(st.lists(st.sampled_from(sorted(good)), min_size=1, unique=True))
    body: dict[str, object] = dict(good)
    for member in broken:
        if data.draw(st.booleans(), label="missing"):
            del body[member]
        else:
            zero = st.just(0) if member != "userId" else st.nothing()
            body[member] = data.draw(invalid_integers | zero)
    answer = await served.client.post("/api/config", json=body)
    assert answer.status_code == 400
    assert answer.json()["title"] == "Missing/Invalid Arguments"
    assert answer.headers["content-type"] == "application/problem+json"
    assert await served.rows() == before


@examples
@given(limits, st.integers(0, 60), windows, st.integers(0, 100_000))
async def test_property_3_an_elapsed_window_starts_again(
    served: Gateway, limit: int, count: int, window: int, extra_seconds: int
) -> None:
    user = new_user()
    await served.configure(user, limit, window)
    await served.set(user, current_count=count)
    await served.age(user, timedelta(minutes=window, seconds=extra_seconds))
    aged = await served.row(user)
    assert (await served.send(user)).status_code == 200
    row = await served.row(user)
    assert row.current_count == 1
    assert row.last_refresh_time >= aged.last_refresh_time + timedelta(minutes=window, seconds=extra_seconds)


@examples
@given(limits, st.integers(0, 60), windows, st.floats(0, 0.9))
async def test_property_4_within_a_window_the_limit_decides(
    served: Gateway, limit: int, count: int, window: int, elapsed: float
) -> None:
    user = new_user()
    await served.configure(user, limit, window)
    await served.set(user, current_count=count)
    await served.age(user, timedelta(milliseconds=int(window * 60_000 * elapsed)))
    began = (await served.row(user)).last_refresh_time
    answer = await served.send(user)
    row = await served.row(user)
    assert row.last_refresh_time == began
    if count < limit:
        assert (answer.status_code, row.current_count) == (200, count + 1)
        assert answer.json()["status"] == "Message Sent Successfully"
        assert uuid.UUID(answer.json()["messageId"])
    else:
        assert (answer.status_code, row.current_count) == (429, count)
        assert answer.json()["title"] == "Rate Limit Exceeded"
        assert 1 <= int(answer.headers["Retry-After"]) <= window * 60


async def test_property_5_nothing_is_counted_that_kafka_did_not_confirm(
    postgres_url: str, own_kafka: KafkaServer
) -> None:
    sms = {"kafka_delivery_seconds": 0.5}
    async with gateway(database_url=postgres_url, kafka_bootstrap=own_kafka.bootstrap, sms=sms) as served:
        user = new_user()
        await served.configure(user, 10, 10)
        await eventually(lambda: sent(served, user))
        before = await served.row(user)
        await asyncio.to_thread(own_kafka.stop)
        other = new_user()
        await served.configure(other, 1000, 10)
        await eventually(lambda: denied_for_now(served, other))  # what a ping found is believed for a moment

        @examples
        @given(limits, st.integers(0, 49), st.booleans(), messages)
        async def refused(limit: int, count: int, elapsed: bool, message: str) -> None:
            count = min(count, limit - 1)
            user = new_user()
            await served.configure(user, limit, 10)
            await served.set(user, current_count=count)
            if elapsed:
                await served.age(user, timedelta(minutes=11))
            before = await served.row(user)
            answer = await served.send(user, message)
            assert answer.status_code == 503
            assert answer.json()["title"] == "Kafka Down : Service Unavailable"
            assert await served.row(user) == before

        await in_this_loop(refused)
        await asyncio.to_thread(own_kafka.start)
        await eventually(lambda: sent(served, user))
        assert (await served.row(user)).current_count == before.current_count + 1


FULL = {
    "sqlite": [
        "CREATE TRIGGER full_disk BEFORE INSERT ON paceline_dispatch_queue BEGIN SELECT RAISE(FAIL, 'disk full'); END"
    ],
    "postgres": [
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON paceline_dispatch_queue FOR EACH ROW EXECUTE FUNCTION full_disk()",
    ],
}
"""Statements after which the queue takes no item."""


@pytest.mark.parametrize("log", list(FULL))
async def test_property_5_nothing_is_counted_that_the_queue_did_not_take(
    request: pytest.FixtureRequest, log: str
) -> None:
    async with gateway(**stores(request, log)) as served:

        async def execute(statements: list[str]) -> None:
            for statement in statements:
                await served.database.write(lambda connection, sql: connection.exec_driver_sql(sql), statement)

        @examples
        @given(limits, st.integers(0, 49), st.booleans(), messages)
        async def refused(limit: int, count: int, elapsed: bool, message: str) -> None:
            user = new_user()
            await served.configure(user, limit, 10)
            await served.set(user, current_count=min(count, limit - 1))
            if elapsed:
                await served.age(user, timedelta(minutes=11))
            before = await served.row(user)
            assert (await served.send(user, message)).status_code == 503
            assert await served.row(user) == before

        await execute(FULL[log])
        await in_this_loop(refused)
        await execute(["DROP TRIGGER full_disk" + (" ON paceline_dispatch_queue" if log == "postgres" else "")])
        user = new_user()
        await served.configure(user, 1, 10)
        assert await sent(served, user)
        assert [key for key, _ in await served.waiting()] == [str(user)]


async def sent(served: Gateway, user: int) -> bool:
    return (await served.send(user)).status_code == 200


async def denied_for_now(served: Gateway, user: int) -> bool:
    return (await served.send(user)).status_code == 503


@pytest.mark.parametrize("log", LOGS)
async def test_property_6_of_many_at_once_exactly_one_takes_the_last_slot(
    request: pytest.FixtureRequest, log: str
) -> None:
    async with gateways(3, **stores(request, log)) as served:

        @examples
        @given(limits, st.integers(2, 24))
        async def raced(limit: int, callers: int) -> None:
            user = new_user()
            await served[0].configure(user, limit, 10)
            await served[0].set(user, current_count=limit - 1)
            answers = await asyncio.gather(*(served[n % 3].send(user, f"{n}") for n in range(callers)))
            assert Counter(answer.status_code for answer in answers) == {200: 1, 429: callers - 1}
            assert (await served[0].row(user)).current_count == limit

        await in_this_loop(raced)


async def test_property_7_what_was_sent_is_on_the_topic(served: Gateway) -> None:
    sent: dict[str, tuple[int, str]] = {}

    @examples
    @given(messages)
    async def publish(message: str) -> None:
        user = new_user()
        await served.configure(user, 1, 1)
        answer = await served.send(user, message)
        assert answer.status_code == 200
        sent[answer.json()["messageId"]] = (user, message)
        assert (await served.send(user, message)).status_code == 429  # and this one must not be there

    await in_this_loop(publish)
    is_kafka = served.settings.kafka_bootstrap is not None
    records = await asyncio.to_thread(consumed, served, len(sent)) if is_kafka else await served.waiting()
    assert len(records) == len(sent) >= effort.examples(100)
    for key, value in records:
        document = json.loads(value)
        assert (document["userId"], document["message"]) == sent.pop(document["messageId"])
        assert key == str(document["userId"])
    assert not sent


def consumed(served: Gateway, count: int) -> list[tuple[str, str]]:
    """So many records of the topic in Kafka, and one more if there is one: keys and values."""
    consumer = Consumer(
        {
            "bootstrap.servers": served.settings.kafka_bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            # A partition that it is not told of at first is learnt of then; by default after five minutes.
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    consumer.subscribe([served.settings.section(SmsSettings).topic])
    records = [record for record in consumer.consume(count, 60) if record.error() is None]
    while len(records) < count and (more := consumer.consume(1, 10)):  # an error counts as a record
        records += [record for record in more if record.error() is None]
    records += consumer.consume(1, 0.5)
    consumer.close()
    return [((record.key() or b"").decode(), (record.value() or b"").decode()) for record in records]
