"""The sender with a provider that is slow, hangs, is down or refuses; with two senders; with poison records in the log.
In this process, on real stores, with short timeouts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from paceline.sql.outbox_tables import outbox
from paceline.testing import KafkaServer, eventually
from paceline_sms.settings import SmsSettings
from tests import effort
from tests.faults.sms_provider import http_provider
from tests.integration.notification_gateway import (
    LOGS,
    Gateway,
    examples,
    gateway,
    gateways,
    in_this_loop,
    new_user,
    stores,
)

TIMEOUT_SECONDS = 3


async def fill(served: Gateway, users: list[int], each: int) -> list[str]:
    """Sends so many messages per user; returns their ids."""
    ids = []
    for user in users:
        assert (await served.configure(user, 1000, 60)).status_code == 200
    for number in range(each):
        for user in users:
            answer = await served.send(user, f"{user}-{number}")
            assert answer.status_code == 200
            ids.append(answer.json()["messageId"])
    return ids


@pytest.mark.parametrize("log", LOGS)
async def test_a_slow_provider_doubles_nothing_with_two_healthy_senders(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    """15.1: calls longer than the leases, which are kept alive while messages are being sent."""
    sms = {"sender": "inline", "lease_seconds": 1}
    async with http_provider() as provider:
        sms["webhook_url"] = provider.url
        provider.delay = 1.5
        async with gateways(2, **stores(request, log), sms=sms) as served:
            ids = await fill(served[0], [new_user() for _ in range(4)], 3)
            await eventually(lambda: set(provider.accepted) == set(ids), within=60)
        assert Counter(provider.accepted) == Counter(ids)
        assert len(provider.calls) == len(ids)


@pytest.mark.parametrize("log", ["sqlite", "kafka"])
async def test_a_hanging_user_holds_up_nobody(request: pytest.FixtureRequest, tmp_path: Path, log: str) -> None:
    """15.2: while one user's calls hang, the others' messages go out, however many of them came later."""
    sms = {"sender": "inline"}
    async with http_provider() as provider:
        sms["webhook_url"] = provider.url
        async with gateway(**stores(request, log), sms={**sms, "timeout_seconds": TIMEOUT_SECONDS}) as served:
            hanging, *others = [new_user() for _ in range(6)]
            provider.hangs = {hanging}
            started = time.monotonic()
            await fill(served, [hanging], 5)
            first = await fill(served, others, 3)
            await eventually(lambda: set(first) <= set(provider.accepted), within=30)
            later = await fill(served, others, 3)
            await eventually(lambda: set(later) <= set(provider.accepted), within=30)
            # All the time one hanging message was in flight, each once until its timeout.
            hung = [call["messageId"] for call in provider.calls if call["userId"] == hanging]
            assert len(hung) == len(set(hung)) <= (time.monotonic() - started) / TIMEOUT_SECONDS + 1
            for user in others:
                own = [text for text in provider.messages() if text.startswith(f"{user}-")]
                assert own == [f"{user}-{n}" for n in (0, 1, 2, 0, 1, 2)]


async def test_an_outage_of_the_provider_loses_nothing(tmp_path: Path) -> None:
    """15.3: longer than all attempts of a message; none is dead-lettered, all are sent when it is back."""
    async with http_provider() as provider:
        provider.away = True
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
            ids = await fill(served, [new_user() for _ in range(20)], 1)
            await eventually(lambda: len(provider.calls) > 6, within=30)
            calls = len(provider.calls)
            await eventually(lambda: len(provider.calls) > calls + 1, within=30)  # probes, while the others wait
            provider.away = False
            await eventually(lambda: set(provider.accepted) == set(ids), within=30)
            assert (await served.client.get("/admin/sms/dead-letters")).json()["deadLetters"] == []


async def test_dead_letters_are_listed_redriven_and_dropped(tmp_path: Path) -> None:
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
            user = new_user()
            provider.statuses = {f"{user}-{number}": 422 for number in range(3)}
            ids = await fill(served, [user], 3)

            async def letters() -> list[dict[str, Any]]:
                listed: list[dict[str, Any]] = (await served.client.get("/admin/sms/dead-letters")).json()[
                    "deadLetters"
                ]
                return listed

            await eventually(lambda: _has(letters, 3), within=30)
            listed = await letters()
            assert {letter["messageId"] for letter in listed} == set(ids)
            assert {(letter["reason"], letter["attempts"]) for letter in listed} == {("the provider answered 422", 1)}
            status = (await served.client.get(f"/api/messages/{ids[0]}")).json()
            assert (status["status"], status["reason"]) == ("failed", "the provider answered 422")
            page = (await served.client.get("/admin/sms/dead-letters?limit=2")).json()
            assert len(page["deadLetters"]) == 2
            rest = (await served.client.get(f"/admin/sms/dead-letters?limit=2&cursor={page['next']}")).json()
            assert [len(rest["deadLetters"]), rest["next"]] == [1, None]

            provider.statuses = {}
            where = "/admin/sms/dead-letters"
            answer = await served.client.post(f"{where}/redrive", json={"ids": [listed[0]["id"], "unknown"]})
            assert answer.json() == {"redriven": 1, "kept": 0}
            again = await served.client.post(f"{where}/redrive", json={"ids": [listed[0]["id"]]})
            assert again.json() == {"redriven": 0, "kept": 0}
            await eventually(lambda: provider.accepted == [listed[0]["messageId"]], within=30)
            assert (await served.client.post(f"{where}/drop", json={"ids": [listed[1]["id"]]})).json() == {"dropped": 1}
            assert (await served.client.post(f"{where}/redrive", json={"all": True})).json()["redriven"] == 1
            await eventually(lambda: len(provider.accepted) == 2, within=30)
            assert await letters() == []
            wrongs: list[dict[str, Any]] = [{}, {"ids": ["a"], "all": True}, {"ids": []}, {"all": False}]
            for wrong in wrongs:
                assert (await served.client.post(f"{where}/drop", json=wrong)).status_code == 400


async def _has(letters: Any, count: int) -> bool:
    return len(await letters()) == count


POISON = [
    "",
    "not a message",
    "\\u0000",
    "[" * 5000,
    "9" * 5000,
    json.dumps({"userId": 2**70, "message": "m", "messageId": "big"}),
    json.dumps({"userId": -1, "message": "m", "messageId": "negative"}),
    json.dumps({"userId": 1, "message": "m", "messageId": "nul\0"}),
    json.dumps({"userId": 1, "message": "m", "messageId": "i" * 200}),
    json.dumps({"userId": 1, "message": "half \ud800", "messageId": "surrogate"}),
    '{"userId": 1, "message": "m", "messageId": "\\ud800"}',
    json.dumps({"userId": 1, "message": "m", "messageId": "t1", "expiresAt": 10**30}),
    json.dumps({"userId": 1, "message": "m", "messageId": "t2", "expiresAt": -5}),
    json.dumps({"userId": 1, "message": "m", "messageId": "t3", "acceptedAt": "soon"}),
    '{"userId": 1, "message": "m", "messageId": "t4", "expiresAt": NaN}',
    json.dumps({"userId": 1, "message": "m", "messageId": "to", "to": "0"}),
    json.dumps({"userId": 1, "message": "m", "messageId": "p", "priority": ["high"]}),
    json.dumps({"userId": 1, "message": "x" * 900_000, "messageId": "large"}),
    json.dumps({"userId": None, "message": None, "messageId": None}),
]


@pytest.mark.parametrize("log", ["sqlite", "postgres"])
async def test_poison_goes_to_the_dead_letters_and_the_next_is_sent(
    request: pytest.FixtureRequest, tmp_path: Path, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """15.4 on the outbox: whatever the record is."""
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(**stores(request, log), sms=sms) as served:
            user = new_user()
            rows = [
                {
                    "topic": served.settings.section(SmsSettings).topic,
                    "message_key": "1",
                    "message_value": value,
                    "created_at": sa.func.now(),
                }
                for value in POISON
            ]

            def insert(connection: sa.Connection) -> None:
                for row in rows:
                    connection.execute(outbox.insert().values(row))

            await served.database.write(insert)
            ids = await fill(served, [user], 1)
            await eventually(lambda: provider.accepted == ids, within=30)

            async def letters() -> list[dict[str, Any]]:
                page = await served.client.get("/admin/sms/dead-letters?limit=1000")
                listed: list[dict[str, Any]] = page.json()["deadLetters"]
                return listed

            await eventually(lambda: _has(letters, len(POISON)), within=30)
            assert [letter["redrivable"] for letter in await letters()].count(False) == 1
            assert (await served.client.get("/health/ready")).json()["status"] == "UP"
            assert "started again" not in caplog.text


async def test_any_bytes_on_kafka_go_to_the_dead_letters(postgres_url: str, kafka_bootstrap: str) -> None:
    """15.4 on Kafka: the corpus, what a broker's own clients may write, and random bytes."""
    chance = random.Random(4)
    odd = [chance.randbytes(chance.randrange(1, 200)) for _ in range(effort.examples(100))]
    corpus = (
        {value.encode(errors="surrogatepass") for value in POISON}
        | set(odd)
        | {b"\0", b"\xff\xfe", b'{"userId": 1e400}'}
    )
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(database_url=postgres_url, kafka_bootstrap=kafka_bootstrap, sms=sms) as served:
            user = new_user()
            await fill(served, [user], 1)
            producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
            for number, value in enumerate(sorted(corpus)):
                key = [None, b"\0", b"\xff" * 300, b"7"][number % 4]
                producer.produce(served.settings.section(SmsSettings).topic, value, key)
            producer.produce(served.settings.section(SmsSettings).topic, None, b"tombstone")
            await asyncio.to_thread(producer.flush, 30)
            later = await fill(served, [user], 1)
            await eventually(lambda: later[0] in provider.accepted, within=60)

            async def letters() -> list[dict[str, Any]]:
                page = await served.client.get("/admin/sms/dead-letters?limit=1000")
                listed: list[dict[str, Any]] = page.json()["deadLetters"]
                return listed

            # Letters of one key and content are one: bytes that are no UTF-8 look the same, replaced.
            await eventually(lambda: _more(letters, len(corpus) - 10), within=60)
            assert len(provider.accepted) == 2
            assert (await served.client.get("/health/ready")).json()["status"] == "UP"


odd_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([]), st.just({"a": 1})
)
documents = st.dictionaries(
    st.sampled_from(["userId", "message", "messageId", "to", "priority", "acceptedAt", "expiresAt", "more"]), odd_values
)
"""Some of them are messages."""
any_bytes = st.binary(max_size=300) | documents.map(lambda document: json.dumps(document).encode())


@pytest.mark.parametrize("log", LOGS)
async def test_no_bytes_stop_the_sender(
    request: pytest.FixtureRequest, tmp_path: Path, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """15.4 by Hypothesis, through every log: what comes after them is sent, and nothing was started again."""
    settings = stores(request, log)
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(**settings, sms=sms) as served:
            topic, user = served.settings.section(SmsSettings).topic, new_user()
            await fill(served, [user], 1)
            await eventually(lambda: provider.accepted, within=60)

            async def append(values: list[bytes]) -> None:
                if log == "kafka":
                    producer = Producer({"bootstrap.servers": settings["kafka_bootstrap"], "log_level": 0})
                    for value in values:
                        producer.produce(topic, value, str(user))
                    await asyncio.to_thread(producer.flush, 30)
                    return
                # SQLite takes any bytes for a text; PostgreSQL takes UTF-8 without NUL only.
                text = "CAST(:value AS TEXT)" if log == "sqlite" else ":value"
                insert = sa.text(
                    "INSERT INTO paceline_outbox (topic, message_key, message_value, created_at) "
                    f"VALUES (:topic, '{user}', {text}, CURRENT_TIMESTAMP)"
                )
                storable = values if log == "sqlite" else [as_text(value) for value in values]
                rows = [{"topic": topic, "value": value} for value in storable]
                await served.database.write(lambda connection: connection.execute(insert, rows))

            # Not shrunk: every step would wait for a sender that has stopped.
            @hypothesis_settings(examples, max_examples=effort.examples(20), phases=[Phase.explicit, Phase.generate])
            @given(st.lists(any_bytes, min_size=1, max_size=20))
            async def pour(values: list[bytes]) -> None:
                await append(values)
                (last,) = await fill(served, [user], 1)
                await eventually(lambda: last in provider.accepted, within=30)

            await in_this_loop(pour)
            assert (await served.client.get("/health/ready")).json()["status"] == "UP"
            assert "started again" not in caplog.text
            if log != "kafka":
                await eventually(lambda: _is_empty(served), within=30)


def as_text(value: bytes) -> str:
    return value.decode(errors="replace").replace("\0", "")


async def _is_empty(served: Gateway) -> bool:
    # Not by `waiting`: what waits may be no text at all.
    query = sa.text("SELECT count(*) FROM paceline_outbox WHERE topic = :topic")
    of_topic = {"topic": served.settings.section(SmsSettings).topic}
    waiting: int = await served.database.read(lambda connection: connection.execute(query, of_topic).scalar_one())
    return not waiting


async def _more(letters: Any, count: int) -> bool:
    return len(await letters()) >= count


async def test_a_frozen_broker_costs_one_timeout_and_counts_nothing(postgres_url: str, own_kafka: KafkaServer) -> None:
    """15.5: a message answered with 503 is not counted and never sent; no caller waits behind another."""
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url, "kafka_delivery_seconds": 1.0}
        async with gateway(database_url=postgres_url, kafka_bootstrap=own_kafka.bootstrap, sms=sms) as served:
            user, other = new_user(), new_user()
            assert (await served.configure(user, 20, 60)).status_code == 200
            assert (await served.configure(other, 10_000, 60)).status_code == 200
            await eventually(lambda: _sent(served, user), within=60)
            loop = asyncio.get_running_loop()
            accepted: list[str] = []
            refused = 0
            own_kafka.pause()
            try:
                # Until the broker's timeout, messages go into the outbox, and are sent later.
                await eventually(lambda: _refused(served, other), within=60)
                for _ in range(3):
                    started = loop.time()
                    answers = await asyncio.gather(*(served.send(user) for _ in range(30)))
                    spent = loop.time() - started
                    accepted += [answer.json()["messageId"] for answer in answers if answer.status_code == 200]
                    refused += sum(answer.status_code == 503 for answer in answers)
                    assert spent < 10  # each by itself would be thirty seconds
            finally:
                own_kafka.resume()
            assert refused > 0
            count = (await served.row(user)).current_count
            others = (await served.row(other)).current_count
            assert count == 1 + len(accepted)
            await eventually(lambda: len(provider.accepted) == others + count, within=60)
            rest = [(await served.send(user)).status_code for _ in range(21)]
            assert rest.count(200) == 20 - count
            await eventually(lambda: len(provider.accepted) == others + 20, within=60)
            assert len(provider.calls) == others + 20


async def _refused(served: Gateway, user: int) -> bool:
    return (await served.send(user)).status_code == 503


async def _sent(served: Gateway, user: int) -> bool:
    return (await served.send(user)).status_code == 200


async def test_texts_are_not_logged_and_numbers_are_masked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """15.6."""
    caplog.set_level(logging.DEBUG)
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
            user = new_user()
            body = {"userId": user, "rateLimit": 9, "timeWindow": 9, "phone": "+49 170 1234567"}
            assert (await served.client.post("/api/config", json=body)).json()["phone"] == "+491701234567"
            answer = await served.send(user, "your code is 815-4711")
            await eventually(lambda: provider.accepted, within=30)
            assert provider.calls[0]["to"] == "+491701234567"
            await eventually(lambda: "SMS Sent" in caplog.text)
            assert (await served.client.put("/api/optouts/+491701234567")).status_code == 200
        # The test's own HTTP client logs what it calls.
        ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("http", "asyncio"))]
        logged = "\n".join([*ours, capfd.readouterr().out])
        assert "/api/optouts/+49…67" in logged
        assert "815-4711" not in logged
        assert "1234567" not in logged
        assert f"SMS Sent: {user}: {answer.json()['messageId']} to +49…67" in caplog.text
