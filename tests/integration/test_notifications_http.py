"""The gateway as its users meet it: statuses and titles, the embedded sender, analytics, outages."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from paceline.testing import PostgresServer, eventually
from paceline_sms import Accepted, SmsMessage
from paceline_sms.model import Attempt
from paceline_sms.ports import Receipt
from paceline_sms.quota import Quota
from paceline_sms.stores import attempt_statements
from paceline_sms.stores.redis import RedisQuotaCache
from tests.integration.notification_gateway import Gateway, gateway, new_user

JSON = {"Content-Type": "application/json"}
NOBODY = "127.0.0.1:1"
"""Where no broker listens."""


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Gateway]:
    """No server but SQLite; the service sends by itself."""
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms={"sender": "auto"}) as opened:
        yield opened


async def test_from_configuration_to_the_phone_without_any_server(
    embedded: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paceline_sms")
    configured = await embedded.configure(101, 2, 5)
    assert configured.status_code == 200
    assert configured.headers["content-type"] == "application/json"
    for number in (1, 2):
        answer = await embedded.send(101, f"Hello {number}")
        assert answer.status_code == 200
        assert set(answer.json()) == {"status", "messageId", "segments"}
        assert answer.json()["status"] == "Message Sent Successfully"
    refused = await embedded.send(101, "Hello 3")
    assert refused.status_code == 429
    assert refused.json()["title"] == "Rate Limit Exceeded"
    assert 295 <= int(refused.headers["Retry-After"]) <= 300
    await eventually(lambda: [m for m in caplog.messages if m.startswith("SMS Sent: ")][1:])
    assert [m for m in caplog.messages if "SMS Sent" in m] == ["SMS Sent: 101: Hello 1", "SMS Sent: 101: Hello 2"]
    await eventually(lambda: _is_empty(embedded))


async def _is_empty(served: Gateway) -> bool:
    return await served.waiting() == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"userId": 1}, "message"),
        ({"message": "m"}, "userId"),
        ({"userId": 1, "message": ""}, "message"),
        ({"userId": 1, "message": "   \n"}, "message"),
        ({"userId": 1, "message": None}, "message"),
        ({"userId": 1, "message": 5}, "message"),
        ({"userId": 1, "message": "x" * 10_001}, "message"),
        ({"userId": 1, "message": "\ud800"}, "message"),
        ({"userId": -1, "message": "m"}, "userId"),
        ({"userId": "1", "message": "m"}, "userId"),
        ({"userId": True, "message": "m"}, "userId"),
        ({"userId": 1.5, "message": "m"}, "userId"),
        ({"userId": 2**31, "message": "m"}, "userId"),
        ({"userId": 1, "message": "m", "priority": 1}, "priority"),
        ([], "body"),
        ("hello", "body"),
    ],
)
async def test_what_is_not_a_request_is_refused_and_counts_nothing(embedded: Gateway, body: Any, field: str) -> None:
    await embedded.configure(1, 5, 5)
    answer = await embedded.client.post("/api/send", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["title"] == "Missing/Invalid Arguments"
    assert answer.json()["field"] == field
    assert (await embedded.row(1)).current_count == 0


async def test_an_unknown_user_is_not_found(embedded: Gateway) -> None:
    answer = await embedded.send(404_404)
    assert (answer.status_code, answer.json()["title"]) == (404, "User Not Found")


async def test_any_character_reaches_the_sender(embedded: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paceline_sms")
    await embedded.configure(1, 5, 5)
    assert (await embedded.send(1, "nul \x00, newline \n, émoji 🎉")).status_code == 200
    await eventually(lambda: r"SMS Sent: 1: nul \x00, newline \n, émoji 🎉" in caplog.messages)


class Line:
    """A provider of receipts over its own connection, whose code fails while `is_broken`."""

    opened: ClassVar[list[Line]] = []

    def __init__(self) -> None:
        self.opened.append(self)
        self.is_broken = True
        self.report: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

    async def send(self, message: SmsMessage) -> Accepted:
        return Accepted(f"line-{message.id}")

    async def receipts(self) -> AsyncGenerator[Receipt, None]:
        if self.is_broken:
            raise RuntimeError("it can't go on")
        yield await self.report
        await asyncio.Event().wait()


async def test_a_reader_that_fails_is_started_again_counted_and_named_in_health(tmp_path: Path) -> None:
    """15.4: whatever it fails of."""
    sms = {"sender": "auto", "providers": f"line={__name__}:Line"}
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
        await served.configure(1, 9, 5)
        message_id = (await served.send(1, "waits for its receipt")).json()["messageId"]

        async def sender_is(status: str) -> bool:
            checks = (await served.client.get("/health/ready")).json()["checks"]
            return [check["status"] for check in checks if check["name"] == "sender"] == [status]

        await eventually(lambda: sender_is("DOWN"))
        counter = re.escape('notification_reader_restarts_total{reader="receipts of line"}')
        restarts = re.compile(rf"^{counter} ([0-9.]+)$", re.MULTILINE)
        counted = restarts.search((await served.client.get("/metrics")).text)
        assert counted is not None
        assert float(counted[1]) >= 1
        line = Line.opened[-1]
        line.is_broken = False
        line.report.set_result(Receipt("line", True, message_id))

        async def is_delivered() -> bool:
            status: str = (await served.client.get(f"/api/messages/{message_id}")).json()["status"]
            return status == "delivered"

        await eventually(is_delivered)
        await eventually(lambda: sender_is("UP"))


async def test_attempts_are_counted_for_analytics(embedded: Gateway) -> None:
    await embedded.configure(1, 2, 5)
    await embedded.configure(2, 9, 5)
    for user in (1, 1, 1, 1, 2):
        await embedded.send(user)
    await embedded.send(1, key="k")  # refused
    client = embedded.client

    async def counted() -> Any:
        report = (await client.get("/admin/notifications/analytics", params={"minutes": 5})).json()
        return report if report["attempts"] == 6 else None

    overview = await eventually(counted)
    assert {name: overview[name] for name in ("sent", "rateLimited", "failed", "users")} == {
        "sent": 3,
        "rateLimited": 3,
        "failed": 0,
        "users": 2,
    }
    assert overview["rateLimitedShare"] == 0.5
    assert overview["perMinute"] == 1.2
    assert sum(minute["sent"] for minute in overview["minutes"]) == 3
    assert overview["peak"]["attempts"] >= 3
    assert overview["anomalies"] == []
    users = (await client.get("/admin/notifications/analytics/users", params={"limit": 1})).json()["users"]
    assert [(row["userId"], row["attempts"]) for row in users] == [(1, 5)]
    one = (await client.get("/admin/notifications/analytics/users/2")).json()
    assert (one["userId"], one["attempts"], one["rateLimitedShare"], one["anomaly"]) == (2, 1, 0.0, None)


async def test_analytics_that_take_their_time_hold_up_no_send(
    embedded: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15.7: over a day of many users the query takes seconds, and SQLite has one thread for all sends."""
    await embedded.configure(1, 9, 5)
    begun, go, totals = threading.Event(), threading.Event(), attempt_statements.totals

    def wait_and_count(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return totals(*arguments)

    monkeypatch.setattr(attempt_statements, "totals", wait_and_count)
    querying = asyncio.create_task(embedded.client.get("/admin/notifications/analytics"))
    try:
        await eventually(begun.is_set)
        assert (await asyncio.wait_for(embedded.send(1), 30)).status_code == 200
        assert not querying.done()
    finally:
        go.set()
    assert (await querying).status_code == 200


@pytest.mark.parametrize("query", ["minutes=0", "minutes=x", "minutes=99999", "minutes=-1", "limit=0", "limit="])
async def test_analytics_refuses_what_it_can_not_show(embedded: Gateway, query: str) -> None:
    answer = await embedded.client.get(f"/admin/notifications/analytics/users?{query}")
    assert (answer.status_code, answer.json()["field"]) == (400, query.partition("=")[0])
    assert (await embedded.client.get("/admin/notifications/analytics/users/abc")).status_code == 400


@pytest.mark.parametrize("with_redis", [False, True])
async def test_without_kafka_the_answer_is_503_and_nothing_is_counted(
    postgres_url: str, redis_url: str, with_redis: bool
) -> None:
    where = {"database_url": postgres_url, "kafka_bootstrap": NOBODY, "sms": {"kafka_delivery_seconds": 0.3}}
    async with gateway(**where, redis_url=redis_url if with_redis else None) as served:
        user = new_user()
        await served.configure(user, 3, 5)
        for _ in range(2):
            answer = await served.send(user)
            assert (answer.status_code, answer.json()["title"]) == (503, "Kafka Down : Service Unavailable")
            assert answer.headers["Retry-After"] == "1"
        assert (await served.row(user)).current_count == 0
        assert await served.waiting() == []
        if with_redis:
            with redis.Redis.from_url(redis_url) as client:
                assert not client.hget(f"RateLimiterCache:{user}", "currentCount")
        ready = await served.client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "DEGRADED")
        assert {check["name"]: check["status"] for check in ready.json()["checks"]}["kafka"] == "DOWN"


async def test_without_the_database_the_answer_is_503(own_postgres: PostgresServer, redis_url: str) -> None:
    async with gateway(database_url=own_postgres.url, redis_url=redis_url, kafka_bootstrap=NOBODY) as served:
        user = new_user()
        await served.configure(user, 3, 5)
        await asyncio.to_thread(own_postgres.stop)
        for answer in (await served.configure(user, 3, 5), await served.send(user)):
            assert (answer.status_code, answer.json()["title"]) == (503, "Postgres Down : Service Unavailable")
        await asyncio.to_thread(own_postgres.start)
        await eventually(lambda: _configured(served, user))


async def _configured(served: Gateway, user: int) -> bool:
    return (await served.configure(user, 3, 5)).status_code == 200


async def test_a_known_user_is_served_from_redis_while_the_database_is_away(
    own_postgres: PostgresServer, redis_url: str, kafka_bootstrap: str
) -> None:
    async with gateway(database_url=own_postgres.url, redis_url=redis_url, kafka_bootstrap=kafka_bootstrap) as served:
        user = new_user()
        await served.configure(user, 50, 5)
        assert (await served.send(user)).status_code == 200
        await served.row(user)
        await asyncio.to_thread(own_postgres.stop)
        # What was leased can be spent; nothing more can be leased now.
        assert [(await served.send(user)).status_code for _ in range(5)] == [200] * 4 + [503]
        await asyncio.to_thread(own_postgres.start)

        async def in_step() -> bool:
            try:
                return bool((await served.row(user)).current_count == 5)
            except Exception:
                return False

        await eventually(in_step)


async def test_readers_of_one_group_share_the_topic_and_a_rebalance_loses_nothing(
    postgres_url: str, kafka_bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paceline_sms")
    topics = {"topic": f"sms-rebalance-{new_user()}-{id(caplog)}", "kafka_delivery_seconds": 20}
    where = {"database_url": postgres_url, "kafka_bootstrap": kafka_bootstrap}
    async with gateway(**where, sms=topics | {"sender": "inline"}) as first:
        users = [new_user() for _ in range(12)]
        for user in users:
            await first.configure(user, 100, 5)

        async def send(count: int) -> None:
            for number in range(count):
                assert (await first.send(users[number % 12], "m")).status_code == 200

        await send(24)
        async with gateway(**where, sms=topics | {"sender": "inline"}):
            await send(24)  # while the second one joins
            await eventually(lambda: _sent(caplog) >= 48)
            await send(24)
        await send(24)  # while it leaves
        await eventually(lambda: _sent(caplog) >= 96)
    assert _sent(caplog) == 96


def _sent(caplog: pytest.LogCaptureFixture) -> int:
    return sum(message.startswith("SMS Sent: ") for message in caplog.messages)


@pytest.mark.parametrize("with_redis", [False, True])
async def test_a_batch_keeps_each_user_s_order_and_quota(
    tmp_path: Path, with_redis: bool, request: pytest.FixtureRequest
) -> None:
    """More messages than share a transaction, of two users, and of an unknown one."""
    redis_url = request.getfixturevalue("redis_url") if with_redis else None
    first, second, unknown = new_user(), new_user(), new_user()
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", redis_url=redis_url) as served:
        await served.configure(first, 700, 60)
        await served.configure(second, 3, 60)
        messages = [{"userId": (first, second)[number % 10 == 0], "message": str(number)} for number in range(999)]
        messages.append({"userId": unknown, "message": "hello"})
        answer = await served.client.post("/api/send/batch", json={"messages": messages})
        assert answer.status_code == 200
        statuses = [result["status"] for result in answer.json()["results"]]
        for user, limit in ((first, 700), (second, 3)):
            own = [statuses[index] for index, message in enumerate(messages) if message["userId"] == user]
            assert own == ["Message Sent Successfully"] * limit + [429] * (len(own) - limit)
            texts = [json.loads(value)["message"] for key, value in await served.waiting() if key == str(user)]
            assert texts == [message["message"] for message in messages if message["userId"] == user][:limit]
        assert statuses[-1] == 404


@pytest.mark.redis
async def test_a_batch_of_one_user_takes_few_round_trips_to_redis(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message brings a budget to Redis; the others are decided together, with one lease for all of them."""
    under_way = [0]
    most = 0
    spend = RedisQuotaCache.spend

    async def counted(cache: RedisQuotaCache, attempt: Attempt, quota: Quota) -> Any:
        nonlocal most
        under_way[0] += 1
        most = max(most, under_way[0])
        try:
            return await spend(cache, attempt, quota)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(RedisQuotaCache, "spend", counted)
    user = new_user()
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", redis_url=redis_url) as served:
        await served.configure(user, 40, 60)
        messages = [{"userId": user, "message": str(number)} for number in range(50)]
        answer = await served.client.post("/api/send/batch", json={"messages": messages})
        statuses = [result["status"] for result in answer.json()["results"]]
        assert statuses == ["Message Sent Successfully"] * 40 + [429] * 10
        assert (await served.row(user)).current_count == 40
    assert most >= 10  # in an SQLite file each send reads the configuration first


async def test_a_configuration_keeps_what_it_leaves_out(embedded: Gateway) -> None:
    """The seed's three members must not erase a phone number."""
    user = new_user()
    body = {"userId": user, "rateLimit": 5, "timeWindow": 5}
    rest = {"phone": "+491701234567", "zone": "Europe/Berlin", "locale": "de-DE", "unit": "segment"}
    await embedded.client.post("/api/config", json=body | rest)
    shown = (await embedded.client.post("/api/config", json=body | {"rateLimit": 9})).json()
    assert {name: shown[name] for name in rest} == rest
    assert shown["rateLimit"] == 9
    shown = (await embedded.client.post("/api/config", json=body | {"zone": None, "unit": None})).json()
    assert (shown["phone"], "zone" in shown, "unit" in shown) == (rest["phone"], False, False)


async def test_what_would_not_fit_the_kept_algorithm_changes_nothing(embedded: Gateway) -> None:
    user = new_user()
    body = {"userId": user, "rateLimit": 5, "timeWindow": 5}
    assert (await embedded.client.post("/api/config", json=body | {"algorithm": "sliding_log"})).status_code == 200
    answer = await embedded.client.post("/api/config", json=body | {"rateLimit": 2**31 - 1})
    assert (answer.status_code, answer.json()["field"]) == (400, "rateLimit")
    assert (await embedded.client.get(f"/api/config/{user}")).json()["rateLimit"] == 5


@pytest.mark.parametrize("with_redis", [False, True])
async def test_who_has_opted_out_is_refused_by_name_and_not_counted(
    tmp_path: Path, with_redis: bool, request: pytest.FixtureRequest
) -> None:
    redis_url = request.getfixturevalue("redis_url") if with_redis else None
    number, other = "+491701234567", "+491701234568"
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", redis_url=redis_url) as served:
        user = new_user()
        body = {"userId": user, "rateLimit": 5, "timeWindow": 5, "phone": number}
        await served.client.post("/api/config", json=body)
        await served.client.put(f"/api/optouts/{number}")
        message = {"userId": user, "message": "hello"}
        for headers in ({}, {"Idempotency-Key": "k"}):
            answer = await served.client.post("/api/send", json=message, headers=headers)
            assert (answer.status_code, answer.json()["title"]) == (403, "Recipient Opted Out")
            assert number not in answer.text
        assert (await served.row(user)).current_count <= 1  # what is leased to Redis
        assert await served.waiting() == []
        assert (await served.client.post("/api/send", json=message | {"to": other})).status_code == 200
        await served.client.delete(f"/api/optouts/{number}")
        assert (await served.client.post("/api/send", json=message)).status_code == 200


async def test_a_batch_that_is_sent_again_sends_nothing_again(embedded: Gateway) -> None:
    user = new_user()
    await embedded.configure(user, 10, 5)
    messages = [{"userId": user, "message": "one"}, {"userId": user, "message": "two", "idempotencyKey": "own"}]
    post = embedded.client.post

    async def batch(key: str | None, *messages: dict[str, Any]) -> list[Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await post("/api/send/batch", json={"messages": list(messages)}, headers=headers)
        assert answer.status_code == 200
        return list(answer.json()["results"])

    first = await batch("k", *messages)
    assert await batch("k", *messages) == first
    assert (await batch(None, messages[1]))[0] == first[1]
    (alone,) = [await post("/api/send", json={"userId": user, "message": "two"}, headers={"Idempotency-Key": "own"})]
    assert alone.json() == first[1]
    assert (await embedded.row(user)).current_count == 2
    (changed, _) = await batch("k", messages[0] | {"message": "another"}, messages[1])
    assert changed["status"] == 422


async def test_opt_outs_are_shown_and_listed(embedded: Gateway) -> None:
    get, put = embedded.client.get, embedded.client.put
    numbers = [f"+4917012345{number}" for number in range(60, 65)]
    assert (await get("/api/optouts")).json()["optouts"] == []
    for number in reversed(numbers):
        await put(f"/api/optouts/{number}", json={"reason": f"by {number[-1]}"})
    shown = (await get(f"/api/optouts/{numbers[2]}")).json()
    assert (shown["phone"], shown["reason"]) == (numbers[2], "by 2")
    assert shown["createdAt"].endswith("Z")
    answer = await get("/api/optouts/+491701234599")
    assert (answer.status_code, answer.json()["title"]) == (404, "Opt-out Not Found")
    listed: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = (await get("/api/optouts", params={"limit": "2"} | after)).json()
        listed += [entry["phone"] for entry in page["optouts"]]
        if not page.get("next"):
            break
        after = {"after": page["next"]}
    assert listed == numbers
