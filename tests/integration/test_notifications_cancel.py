"""Messages that are cancelled before a sender takes them, judged by the provider's calls."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline.testing import eventually
from tests.faults.sms_provider import http_provider
from tests.integration.notification_gateway import LOGS, Gateway, gateway, new_user, stores


def quiet_now() -> str:
    """Quiet hours, in UTC, for the next two hours."""
    now = datetime.now(UTC)
    return f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=2):%H:%M}"


async def accepted(served: Gateway, user: int, text: str, **members: Any) -> str:
    answer = await served.client.post("/api/send", json={"userId": user, "message": text, **members})
    assert answer.status_code == 200, answer.text
    message_id: str = answer.json()["messageId"]
    return message_id


async def status_of(served: Gateway, message_id: str) -> str:
    status: str = (await served.client.get(f"/api/messages/{message_id}")).json()["status"]
    return status


@pytest.mark.parametrize("log", LOGS)
async def test_a_cancelled_message_is_never_sent_and_the_next_one_is(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    settings, user, topic = stores(request, log), new_user(), f"sms-{uuid.uuid4().hex[:12]}"
    async with http_provider() as provider:
        async with gateway(**settings, sms={"topic": topic}) as served:
            await served.configure(user, 5, 5)
            wrong, right = await accepted(served, user, "wrong"), await accepted(served, user, "right")
            first = await served.client.delete(f"/api/messages/{wrong}")
            assert (first.status_code, first.json()["status"]) == (200, "cancelled"), first.text
            assert first.json()["cancelledAt"] is not None
            again = await served.client.delete(f"/api/messages/{wrong}")
            assert (again.status_code, again.json()) == (200, first.json()), "pressed twice: the same answer"
            assert (await served.row(user)).current_count == 2, "it stays counted"
            listed = await served.client.get("/api/messages", params={"status": "cancelled", "userId": user})
            assert [shown["messageId"] for shown in listed.json()["messages"]] == [wrong]
        sending = {"topic": topic, "sender": "inline", "webhook_url": provider.url}
        async with gateway(**settings, sms=sending) as served:
            await eventually(lambda: provider.accepted, within=60)
            later = await accepted(served, user, "later")
            await eventually(lambda: later in provider.accepted, within=60)
            assert provider.accepted == [right, later]
            assert await status_of(served, wrong) == "cancelled"
            await eventually(lambda: _is_sent(served, right), within=30)
            refused = await served.client.delete(f"/api/messages/{right}")
            assert (refused.status_code, refused.json()["messageStatus"]) == (409, "sent"), refused.text
    assert len(provider.calls) == 2


async def _is_sent(served: Gateway, message_id: str) -> bool:
    return await status_of(served, message_id) == "sent"


async def test_an_unknown_message_can_not_be_cancelled(tmp_path: Path) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}") as served:
        assert (await served.client.delete("/api/messages/nobody")).status_code == 404


@pytest.mark.parametrize("log", LOGS)
async def test_what_waits_for_its_time_is_cancelled_and_leaves_the_queue(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    user = new_user()
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url, "quiet_hours": quiet_now()}
        async with gateway(**stores(request, log), sms=sms) as served:
            await served.configure(user, 5, 5)
            quiet = await accepted(served, user, "quiet")
            await eventually(served.postponed, within=60)
            cancelled = await served.client.delete(f"/api/messages/{quiet}")
            assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled"), cancelled.text
            assert await served.waiting() == []
            urgent = await accepted(served, user, "urgent", priority="high")
            await eventually(lambda: provider.accepted == [urgent], within=30)
    assert len(provider.calls) == 1


@pytest.mark.parametrize("log", LOGS)
async def test_a_race_with_the_sender_has_one_winner(request: pytest.FixtureRequest, tmp_path: Path, log: str) -> None:
    """What answers 200 never reaches the provider, and what answers 409 does, once."""
    users = [new_user() for _ in range(20)]
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(**stores(request, log), sms=sms) as served:
            for user in users:
                await served.configure(user, 9, 5)
            codes: dict[str, int] = {}

            async def race(user: int) -> None:
                message_id = await accepted(served, user, f"of {user}")
                if user % 2:
                    await eventually(lambda: provider.calls, within=60)
                answer = await served.client.delete(f"/api/messages/{message_id}")
                codes[message_id] = answer.status_code

            await asyncio.gather(*(race(user) for user in users))
            last = await accepted(served, users[0], "last")
            expected = {message_id for message_id, code in codes.items() if code == 409} | {last}
            await eventually(lambda: set(provider.accepted) >= expected, within=60)
        assert set(codes.values()) <= {200, 409}
        assert 200 in codes.values()
        assert sorted(call["messageId"] for call in provider.calls) == sorted(expected)


async def test_what_redis_has_just_admitted_can_be_cancelled(tmp_path: Path, redis_url: str) -> None:
    """Its row is written off the send path."""
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", redis_url=redis_url) as served:
        user = new_user()
        await served.configure(user, 5, 5)
        message_id = await accepted(served, user, "never mind")
        cancelled = await served.client.delete(f"/api/messages/{message_id}")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled"), cancelled.text
