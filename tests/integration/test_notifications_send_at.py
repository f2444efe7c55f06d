"""Messages that are sent at a time, and those that expire while they wait for one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from paceline.durations import format_instant
from paceline.testing import eventually
from tests.faults.sms_provider import http_provider
from tests.integration.notification_gateway import LOGS, Gateway, gateway, new_user, stores
from tests.integration.test_notifications_cancel import accepted, quiet_now, status_of


async def post(served: Gateway, user: int, key: str | None = None, **members: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"userId": user, "message": "later", **members}
    return await served.client.post("/api/send", json=body, headers=headers)


def ahead(**span: float) -> str:
    return format_instant(datetime.now(UTC) + timedelta(**span))


@pytest.mark.parametrize("log", LOGS)
async def test_a_scheduled_message_is_sent_at_its_time_and_delays_no_other(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    user = new_user()
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url}
        async with gateway(**stores(request, log), sms=sms) as served:
            await served.configure(user, 5, 5)
            first = await accepted(served, user, "first")
            await eventually(lambda: provider.accepted == [first], within=60)
            at, due = ahead(seconds=3), asyncio.get_running_loop().time() + 3
            later = await accepted(served, user, "later", sendAt=at)
            soon = await accepted(served, user, "soon")
            assert (await served.row(user)).current_count == 3, "it is counted now"
            shown = (await served.client.get(f"/api/messages/{later}")).json()
            assert (shown["status"], shown["sendAt"]) == ("queued", at)
            await eventually(lambda: later in provider.accepted, within=60)
            assert provider.accepted == [first, soon, later]
            assert provider.at[soon] < due
            assert due - 0.5 <= provider.at[later] <= due + 10


async def test_a_scheduled_message_can_be_cancelled_until_its_time(tmp_path: Path) -> None:
    user = new_user()
    sms = {"sender": "inline"}
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
        await served.configure(user, 5, 5)
        later = await accepted(served, user, "later", sendAt=ahead(days=6))
        messages = served.app.state.services.app("sms").messages
        assert len(await served.waiting()) == 1
        assert (await messages.backlog()).waiting == 0, "it waits for nobody"
        shown = (await served.client.get(f"/api/messages/{later}")).json()
        assert shown["expiresAt"] > shown["sendAt"], "the default expiry begins at its time"
        cancelled = await served.client.delete(f"/api/messages/{later}")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled"), cancelled.text
        assert await served.waiting() == []


@pytest.mark.parametrize("backend", ["sql", "redis"])
async def test_what_can_not_be_scheduled_is_refused_and_not_counted(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    settings: dict[str, Any] = {"database_url": f"sqlite:///{tmp_path / 'gateway.db'}"}
    if backend == "redis":
        settings["redis_url"] = request.getfixturevalue("redis_url")
    user = new_user()
    async with gateway(**settings) as served:
        await served.configure(user, 2, 5)
        for members in (
            {"sendAt": ahead(days=7, minutes=1)},
            {"sendAt": "tomorrow"},
            {"sendAt": "2027-03-01T16:00:00"},
            {"sendAt": 5},
            {"sendAt": ahead(hours=1), "expiresIn": "PT30M"},
        ):
            refused = await post(served, user, **members)
            assert (refused.status_code, refused.json()["field"]) == (400, "sendAt"), refused.text
        assert (await served.row(user)).current_count == 0
        at = ahead(hours=1)
        first = await post(served, user, "key", sendAt=at)
        assert (first.status_code, (await post(served, user, "key", sendAt=at)).json()) == (200, first.json())
        assert (await post(served, user, "key", sendAt=ahead(hours=2))).status_code == 422
        batch = {"messages": [{"userId": user, "message": "b", "sendAt": at} for _ in range(2)]}
        results = (await served.client.post("/api/send/batch", json=batch)).json()["results"]
        assert sorted(str(result["status"]) for result in results) == ["429", "Message Sent Successfully"]
        assert len(await served.waiting()) == 2


async def test_a_time_that_is_past_means_at_once(tmp_path: Path) -> None:
    user = new_user()
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}") as served:
        await served.configure(user, 2, 5)
        await accepted(served, user, "now", sendAt=ahead(hours=-1))
        assert len(await served.waiting()) == 1


@pytest.mark.parametrize("log", LOGS)
async def test_what_expires_while_it_waits_for_its_time_ends_as_expired(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    user = new_user()
    async with http_provider() as provider:
        sms = {"sender": "inline", "webhook_url": provider.url, "quiet_hours": quiet_now()}
        async with gateway(**stores(request, log), sms=sms) as served:
            await served.configure(user, 5, 5)
            quiet = await accepted(served, user, "quiet", expiresIn="PT3S")
            await eventually(served.waiting, within=60)

            async def has_expired() -> bool:
                return await status_of(served, quiet) == "expired"

            await eventually(has_expired, within=20)
    assert provider.calls == []
