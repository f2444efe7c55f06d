"""Two senders share the rate of an SMS provider, which sees no more calls in any second, by its own record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from paceline.testing import eventually
from paceline_sms.settings import SmsSettings
from tests.faults.bank import largest
from tests.faults.recording_provider import Recorded, recording_providers
from tests.faults.store_faults import Fault, freeze, kill, named, restart, site_of
from tests.faults.test_notifications_sender import SENDER, sender_process
from tests.integration.notification_gateway import gateway, new_user

RATE = 10
MESSAGES = 20 * RATE
SIGHT = 0.75
"""Of a second: the rate counts departures, and the provider sees arrivals, which bunch as much as the machine is busy.
Senders that shared no rate would bring half as many calls again in this time."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with recording_providers() as address:
        yield address


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ("sqlite", kill),
        ("sqlite", freeze),
        ("postgresql", kill),
        ("postgresql", freeze),
        ("postgresql", restart),
    ],
    ids=named,
)
async def test_no_sliding_second_brings_a_provider_more_calls_than_its_rate(
    store: str, fault: Fault, address: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The rate lies in the database of the messages, wherever quotas are."""
    site = site_of(store, fault, request, tmp_path)
    seen = [Recorded(address, f"{store}-{fault.__name__}-{sender}") for sender in range(2)]
    """What the provider gets from each sender."""
    for provider in seen:
        provider.behave(delay=0.02)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(gateway(database_url=site.url))
        users = [new_user() for _ in range(MESSAGES)]
        for user in users:
            assert (await served.configure(user, 100, 60)).status_code == 200
        environment = {
            "PACELINE_DATABASE_URL": site.url,
            "PACELINE_SMS_TOPIC": served.settings.section(SmsSettings).topic,
            "PACELINE_SMS_EVENTS_TOPIC": served.settings.section(SmsSettings).events_topic,
            "PACELINE_SMS_PROVIDER_RATES": f"webhook={RATE}",
            "PACELINE_SMS_LEASE_SECONDS": "3",
            "PACELINE_SMS_TIMEOUT_SECONDS": "2",
            "PACELINE_SMS_ON_UNKNOWN": "resend",
        }
        messages: list[dict[str, object]] = [{"userId": user, "message": "hello"} for user in users]
        answer = await served.client.post("/api/send/batch", json={"messages": messages})
        assert {result["status"] for result in answer.json()["results"]} == {"Message Sent Successfully"}
        processes = [
            await stack.enter_async_context(
                sender_process(environment | {"PACELINE_SMS_WEBHOOK_URL": provider.url}, tmp_path, SENDER)
            )
            for provider in seen
        ]
        await eventually(lambda: asyncio.to_thread(lambda: all(provider.calls() for provider in seen)), within=60)
        await asyncio.to_thread(fault, site._replace(processes=processes))
        await eventually(
            lambda: asyncio.to_thread(lambda: len({name for each in seen for name in each.ids()}) == MESSAGES),
            within=120,
        )
    arrivals = sorted(float(call["at"]) for provider in seen for call in provider.calls())
    assert largest(arrivals, SIGHT) <= RATE, arrivals
