"""`Idempotency-Key`: the same key of the same user is sent, counted and answered once, on both paths."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from operator import methodcaller

import pytest
import sqlalchemy as sa

from paceline.errors import BrokerUnavailable, PacelineError
from paceline.messaging import Record
from paceline.testing import RedisServer, eventually
from paceline_sms.service.wiring.notifications import prune_notifications
from paceline_sms.stores.tables import notification_key, notification_message
from tests.faults.sms_provider import http_provider
from tests.integration.notification_gateway import Gateway, gateway, gateways, new_user


@pytest.fixture(params=["sql", "redis"])
async def served(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[list[Gateway]]:
    """Two services that share a database, and perhaps Redis; the outbox is the log, so it can be looked into."""
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    # On a busy machine Redis may be slow: then SQL would decide.
    sms = {"redis_timeout_seconds": 30}
    async with gateways(2, database_url=postgres_url, redis_url=redis_url, sms=sms) as opened:
        yield opened


async def published(served: Gateway) -> Counter[str]:
    return Counter(json.loads(value)["messageId"] for _, value in await served.waiting())


async def test_the_same_key_gets_the_same_answer_once_sent(served: list[Gateway]) -> None:
    user = new_user()
    await served[0].configure(user, 3, 10)
    first = await served[0].send(user, "one", key="k")
    for again in (await served[0].send(user, "one", key="k"), await served[1].send(user, "one", key="k")):
        assert (again.status_code, again.json()) == (200, first.json())
    assert await published(served[0]) == {first.json()["messageId"]: 1}
    assert (await served[0].row(user)).current_count == 1


async def test_the_same_key_with_another_message_is_refused(served: list[Gateway]) -> None:
    """15.8: 422, as in the Idempotency-Key draft; nothing is sent, counted or changed."""
    user = new_user()
    await served[0].configure(user, 3, 10)
    first = await served[0].send(user, "one", key="k")
    for again in (await served[0].send(user, "another", key="k"), await served[1].send(user, "another", key="k")):
        assert (again.status_code, again.json()["messageId"]) == (422, first.json()["messageId"])
        assert again.headers["content-type"] == "application/problem+json"
    assert await published(served[0]) == {first.json()["messageId"]: 1}
    assert (await served[0].row(user)).current_count == 1
    assert (await served[1].send(user, "one", key="k")).json() == first.json()


async def test_it_is_answered_even_when_the_quota_is_used_up(served: list[Gateway]) -> None:
    user = new_user()
    await served[0].configure(user, 1, 10)
    first = await served[0].send(user, key="k")
    assert (await served[0].send(user, key="other")).status_code == 429
    assert (await served[1].send(user, key="k")).json() == first.json()


async def test_keys_belong_to_users_and_differ_from_each_other(served: list[Gateway]) -> None:
    users = [new_user(), new_user()]
    for user in users:
        await served[0].configure(user, 5, 10)
    answers = [await served[0].send(user, key=key) for user in users for key in ("a", "b")]
    assert len({answer.json()["messageId"] for answer in answers}) == 4
    assert [(await served[0].row(user)).current_count for user in users] == [2, 2]


async def test_a_refused_key_may_be_tried_again(served: list[Gateway]) -> None:
    user = new_user()
    await served[0].configure(user, 1, 10)
    assert (await served[0].send(user)).status_code == 200
    assert (await served[0].send(user, key="k")).status_code == 429
    await served[0].configure(user, 1, 10)
    assert (await served[0].send(user, key="k")).status_code == 200


async def test_many_at_once_are_one(served: list[Gateway]) -> None:
    for _ in range(5):
        user = new_user()
        await served[0].configure(user, 10, 10)
        answers = await asyncio.gather(*(served[n % 2].send(user, key="k") for n in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["messageId"] for answer in answers}) == 1
        assert (await published(served[0]))[answers[0].json()["messageId"]] == 1
        assert (await served[0].row(user)).current_count == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there"])
async def test_an_unusable_key_is_refused(served: list[Gateway], key: str) -> None:
    user = new_user()
    await served[0].configure(user, 1, 10)
    answer = await served[0].send(user, key=key)
    assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")
    assert (await served[0].row(user)).current_count == 0


async def test_a_key_is_forgotten_after_a_day(postgres_url: str) -> None:
    """The message is sent again, under the same id."""
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(database_url=postgres_url, sms=sms) as served:
            user = new_user()
            await served.configure(user, 5, 10)
            message_id = (await served.send(user, key="k")).json()["messageId"]
            await eventually(lambda: _is_sent(served, message_id), within=30)
            await age(served, timedelta(hours=25))
            assert (await served.send(user, key="k")).status_code == 200
            await eventually(lambda: provider.accepted == [message_id] * 2, within=30)
            assert (await served.send(user, key="k")).status_code == 200
            assert await served.waiting() == []
            assert (await served.row(user)).current_count == 2


async def _is_sent(served: Gateway, message_id: str) -> bool:
    return bool((await served.client.get(f"/api/messages/{message_id}")).json()["status"] == "sent")


async def test_a_key_is_not_forgotten_while_its_message_waits(postgres_url: str) -> None:
    async with gateway(database_url=postgres_url) as served:
        user = new_user()
        await served.configure(user, 5, 10)
        first = await served.send(user, key="k")
        await age(served, timedelta(hours=25), notification_key.c.created_at)
        assert (await served.send(user, key="k")).json() == first.json()
        assert (await served.send(user, "another text", key="k")).status_code == 422
        assert await published(served) == {first.json()["messageId"]: 1}
        assert (await prune_notifications(served.settings, datetime.now(UTC)))["keys"] == 0


async def test_a_key_is_known_with_redis_and_without(postgres_url: str, own_redis: RedisServer) -> None:
    async with gateway(database_url=postgres_url, redis_url=own_redis.url) as served:
        user = new_user()
        await served.configure(user, 5, 10)
        first = await served.send(user, key="with redis")
        await served.row(user)
        await asyncio.to_thread(own_redis.stop)
        assert (await served.send(user, key="with redis")).json() == first.json()
        second = await served.send(user, key="without")
        await asyncio.to_thread(own_redis.start)
        assert (await served.send(user, key="without")).json() == second.json()
        assert sorted((await published(served)).values()) == [1, 1]
        assert (await served.row(user)).current_count == 2


async def test_what_the_broker_did_not_take_goes_to_the_outbox(
    postgres_url: str, redis_url: str, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Property 5 on the Redis path: counted before it is published, so it is sent, whatever the broker does."""
    where = {"database_url": postgres_url, "redis_url": redis_url, "kafka_bootstrap": kafka_bootstrap}
    async with gateway(**where) as served:
        user = new_user()
        await served.configure(user, 5, 10)
        assert served.intake.cached is not None
        assert served.intake.cached._log is not None

        async def fails(records: list[Record]) -> list[PacelineError | None]:
            return [BrokerUnavailable()] * len(records)

        monkeypatch.setattr(served.intake.cached._log, "publish", fails)
        assert (await served.send(user, key="k")).status_code == 200
        assert (await served.send(user)).status_code == 200
        assert (await served.row(user)).current_count == 2
        assert sum((await published(served)).values()) == 2


async def test_a_key_gets_what_was_leased_to_redis_when_nothing_else_is_left(postgres_url: str, redis_url: str) -> None:
    async with gateway(database_url=postgres_url, redis_url=redis_url) as served:
        user = new_user()
        await served.configure(user, 30, 10)
        answers = [await served.send(user) for _ in range(28)]  # 30 are leased: three at a time
        answers += [await served.send(user, key=key) for key in ("a", "b", "b", "c", "a")]
        assert [answer.status_code for answer in answers[28:]] == [200, 200, 200, 429, 200]
        assert sum((await published(served)).values()) == 30


async def test_only_what_has_no_effect_any_more_is_pruned(postgres_url: str) -> None:
    async with gateway(database_url=postgres_url, sms={"sender": "inline"}) as served:
        user = new_user()
        await served.configure(user, 5, 10)
        first = await served.send(user, key="k")
        now = datetime.now(UTC)

        async def counted() -> int:
            return sum((await prune_notifications(served.settings, now + timedelta(days=1))).values())

        # The attempt is there a moment later; the delivery and the key must stay, whatever is pruned.
        await eventually(counted)
        assert (await served.send(user, key="k")).json() == first.json()
        await age(served, timedelta(hours=25))
        pruned = await prune_notifications(served.settings, now)
        assert pruned == {"attempts": 0, "deliveries": 1, "inbound": 0, "keys": 1}


async def age(
    served: Gateway,
    by: timedelta,
    *columns: sa.Column[datetime],
) -> None:
    """Lets keys and deliveries be older, or what is in these columns."""
    then = datetime.now(UTC) - by
    for column in columns or (notification_key.c.created_at, notification_message.c.settled_at):
        statement = sa.update(column.table).values({column: then})
        await served.database.write(methodcaller("execute", statement))
