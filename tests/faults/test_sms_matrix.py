"""Senders that are killed, a provider that is slow, hangs, is away and errs, all at once: every accepted message is
delivered; only calls on the wire at a kill are made twice; the quota holds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headgate.testing import eventually
from tests import warm_start
from tests.faults.sms_provider import HttpProvider, http_provider
from tests.faults.test_notifications_sender import SENDER
from tests.faults.test_sms_delivery import stores
from tests.integration.notification_gateway import Gateway, gateway, new_user

KILLS = 2
LIMIT = 8
CONCURRENCY = 16


def start(served: Gateway, provider: HttpProvider, log: Path) -> Any:
    """A sender in a process of its own."""
    settings = served.settings
    environment = {
        "HEADGATE_DATABASE_URL": settings.database_url,
        "HEADGATE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap or "",
        "HEADGATE_SMS_TOPIC": settings.sms.topic,
        "HEADGATE_SMS_EVENTS_TOPIC": settings.sms.events_topic,
        "HEADGATE_SMS_WEBHOOK_URL": provider.url,
        "HEADGATE_SMS_LEASE_SECONDS": "2",
        "HEADGATE_SMS_TIMEOUT_SECONDS": "2",
        "HEADGATE_SMS_CONCURRENCY": str(CONCURRENCY),
        # So that what hangs is tried again at once, instead of being put aside for half a minute.
        "HEADGATE_SMS_ATTEMPTS": "50",
    }
    with log.open("ab") as output:
        return warm_start.popen(
            [sys.executable, "-c", SENDER], env={**os.environ, **environment}, stdout=output, stderr=output
        )


@pytest.mark.parametrize(("log", "senders"), [("sqlite", 2), ("postgres", 3), ("kafka", 3)])
async def test_every_accepted_message_is_delivered_whatever_happens(
    request: pytest.FixtureRequest, tmp_path: Path, log: str, senders: int
) -> None:
    chance = random.Random(15)
    async with http_provider() as provider, gateway(**stores(request, tmp_path, log)) as served:
        users = [new_user() for _ in range(12)]
        hanging = users[0]
        provider.hangs = {hanging}
        provider.delay = 0.3
        processes = [start(served, provider, tmp_path / "senders.log") for _ in range(senders)]
        on_the_wire = 0
        ids: dict[str, int] = {}
        try:
            for user in users:
                assert (await served.configure(user, LIMIT, 600)).status_code == 200
            for round_number in range(KILLS + 1):
                answers = await asyncio.gather(
                    *(served.send(user, f"{user}-{round_number}-{n}") for user in users for n in range(4))
                )
                assert {answer.status_code for answer in answers} <= {200, 429}
                accepted = [answer.json()["messageId"] for answer in answers if answer.status_code == 200]
                ids |= dict.fromkeys(accepted, round_number)
                sent_before = len(provider.accepted)
                await eventually(lambda: len(provider.calls) > 0, within=60)
                if round_number == 1:
                    provider.away, calls = True, len(provider.calls)
                    await eventually(lambda: len(provider.calls) > calls + 2, within=60)  # noqa: B023 - refused
                    provider.away = False
                if round_number < KILLS:
                    await eventually(lambda: len(provider.accepted) > sent_before, within=60)  # noqa: B023
                    victim = processes.pop(chance.randrange(len(processes)))
                    on_the_wire += CONCURRENCY
                    os.kill(victim.pid, signal.SIGKILL)
                    await asyncio.to_thread(victim.wait)
                    processes.append(start(served, provider, tmp_path / "senders.log"))
            provider.hangs = set()
            await eventually(lambda: set(provider.accepted) >= set(ids), within=120)
        finally:
            for process in processes:
                process.kill()
                await asyncio.to_thread(process.wait)
        # The quota: of twelve asked for, each user got eight.
        assert len(ids) == len(users) * LIMIT
        assert set(provider.accepted) == set(ids)
        doubles = len(provider.accepted) - len(ids)
        assert doubles <= on_the_wire
        assert all(count <= 1 + KILLS for count in Counter(provider.accepted).values())
        for user in users:
            assert (await served.row(user)).current_count == LIMIT
        letters = (await served.client.get("/admin/sms/dead-letters")).json()["deadLetters"]
        assert letters == []
