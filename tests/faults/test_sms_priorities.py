"""What goes first when not all can: judged by a provider in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from paceline.testing import eventually
from tests.faults.recording_provider import Recorded, recording_providers
from tests.integration.notification_gateway import LOGS, Gateway, gateway, new_user, stores

BULK = 4000
LOW = 300
RATE = 5
SECONDS = 2.0
"""The longest that an urgent message may wait behind those."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with recording_providers() as address:
        yield address


async def send_batches(served: Gateway, messages: list[dict[str, object]]) -> None:
    for begin in range(0, len(messages), 500):
        answer = await served.client.post("/api/send/batch", json={"messages": messages[begin : begin + 500]})
        assert {result["status"] for result in answer.json()["results"]} == {"Message Sent Successfully"}


async def seconds_until_called(served: Gateway, provider: Recorded, user: int, text: str) -> float:
    answer = await served.client.post("/api/send", json={"userId": user, "message": text, "priority": "high"})
    accepted_at = time.time()
    message_id = answer.json()["messageId"]
    await eventually(lambda: asyncio.to_thread(lambda: message_id in provider.ids()), within=60)
    (call,) = [call for call in provider.calls() if call["messageId"] == message_id]
    return float(call["at"]) - accepted_at


@pytest.mark.parametrize("log", LOGS)
async def test_an_urgent_message_does_not_wait_behind_the_bulk_of_another_user(
    request: pytest.FixtureRequest, address: str, log: str
) -> None:
    provider = Recorded(address, f"bulk-{log}")
    provider.behave(delay=0.02)
    sms = {"sender": "inline", "webhook_url": provider.url}
    async with gateway(**stores(request, log), sms=sms) as served:
        bulk, urgent = new_user(), new_user()
        for user in (bulk, urgent):
            assert (await served.configure(user, 10_000, 60)).status_code == 200
        await seconds_until_called(served, provider, urgent, "everything runs")
        await send_batches(served, [{"userId": bulk, "message": f"bulk {number}"} for number in range(BULK)])
        waits = [await seconds_until_called(served, provider, urgent, f"urgent {number}") for number in range(3)]
        assert len(provider.calls()) < BULK, "the bulk is still waiting"
        assert max(waits) <= SECONDS, waits


@pytest.mark.parametrize("log", LOGS)
async def test_at_a_provider_s_rate_priority_decides_who_is_next(
    request: pytest.FixtureRequest, address: str, log: str
) -> None:
    """Also if the others are of as many users: each would have its turn before. What the sender has in hand leaves
    first, and is no more than what leaves within a second."""
    provider = Recorded(address, f"rate-{log}")
    sms = {"sender": "inline", "webhook_url": provider.url, "provider_rates": f"webhook={RATE}"}
    async with gateway(**stores(request, log), sms=sms) as served:
        users = [new_user() for _ in range(LOW)]
        for user in users:
            assert (await served.configure(user, 100, 60)).status_code == 200
        await seconds_until_called(served, provider, users[0], "everything runs")
        await send_batches(served, [{"userId": user, "message": "low", "priority": "low"} for user in users])
        await eventually(lambda: asyncio.to_thread(lambda: len(provider.calls()) > RATE), within=30)
        waits = [await seconds_until_called(served, provider, users[-1], f"urgent {number}") for number in range(6)]
        assert len(provider.calls()) < LOW, "the others are still waiting"
        assert max(waits) <= SECONDS, waits
