"""Six processes start on a topic that does not exist yet, and messages come at once: the provider gets every one that
was accepted. A partition's new leader refuses the first records of some starts (`paceline.kafka.producer`)."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline.testing import eventually
from tests.effort import is_thorough
from tests.faults.forked_programs import forked
from tests.faults.notification_processes import url_in
from tests.faults.test_notifications_sender import Provider, provider

STARTS = 100 if is_thorough() else 2
SERVICES, SENDERS, USERS = 3, 3, 30


@pytest.mark.parametrize("start", range(STARTS))
async def test_every_message_that_is_accepted_at_a_start_is_sent(
    start: int, request: pytest.FixtureRequest, postgres_url: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Every other start with Redis."""
    environment = {
        "PACELINE_DATABASE_URL": postgres_url,
        "PACELINE_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "PACELINE_SMS_TOPIC": f"sms-{uuid.uuid4().hex[:12]}",
        "PACELINE_SMS_EVENTS_TOPIC": f"events-{uuid.uuid4().hex[:12]}",
        "PACELINE_SMS_KAFKA_DELIVERY_SECONDS": "20",
    }
    if start % 2:
        environment["PACELINE_REDIS_URL"] = request.getfixturevalue("redis_url")
    with provider() as (found, url):
        environment["PACELINE_SMS_WEBHOOK_URL"] = url
        async with AsyncExitStack() as running:
            for number in range(SENDERS):
                log = tmp_path / f"sender-{number}.log"
                await running.enter_async_context(forked(log, "worker", "sender", **environment))
            logs = [tmp_path / f"service-{number}.log" for number in range(SERVICES)]
            for log in logs:
                await running.enter_async_context(forked(log, "serve", "--port", "0", **environment))
            urls = [await eventually(partial(url_in, log), within=120) for log in logs]
            client = await running.enter_async_context(httpx.AsyncClient(timeout=60))
            accepted = await asyncio.gather(
                *(_configure_and_send(client, urls[user % SERVICES], user) for user in range(USERS))
            )
            await eventually(partial(_has_sent, found, set(accepted)), within=120)


def _has_sent(found: Provider, accepted: set[str]) -> bool:
    return set(found.calls) == accepted


async def _configure_and_send(client: httpx.AsyncClient, url: str, user: int) -> str:
    """Returns the message's id."""
    body = {"userId": user, "rateLimit": 5, "timeWindow": 10}
    assert (await client.post(f"{url}/api/config", json=body)).status_code == 200
    answer = await client.post(f"{url}/api/send", json={"userId": user, "message": "hello"})
    assert answer.status_code == 200
    message_id: str = answer.json()["messageId"]
    return message_id
