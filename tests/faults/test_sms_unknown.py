"""A message whose outcome nobody knows is not sent again by guess. Judged by providers in a process of their own."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.testing import eventually
from tests.faults.recording_provider import ADDRESS, Recorded, recording_providers
from tests.integration.notification_gateway import LOGS, Gateway, gateway, new_user, stores

KEY = "receipts"
TIMEOUT_SECONDS = 0.5
LATE_SECONDS = 1.5


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with recording_providers() as address:
        yield address


def webhook(provider: Recorded, **further: Any) -> dict[str, Any]:
    sms = {"sender": "inline", "webhook_url": provider.url, "webhook_hmac_key": KEY, "timeout_seconds": TIMEOUT_SECONDS}
    return {**sms, **further}


async def send_some(served: Gateway, count: int) -> list[str]:
    """One message for each of so many users; returns their ids."""
    ids = []
    for _ in range(count):
        user = new_user()
        assert (await served.configure(user, 100, 60)).status_code == 200
        answer = await served.send(user)
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["messageId"])
    return ids


async def shown(served: Gateway, message_id: str) -> dict[str, Any]:
    status: dict[str, Any] = (await served.client.get(f"/api/messages/{message_id}")).json()
    return status


async def until_all(served: Gateway, ids: list[str], status: str) -> None:
    async def reached() -> bool:
        return {(await shown(served, message_id))["status"] for message_id in ids} == {status}

    await eventually(reached, within=30)


async def letters(served: Gateway) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await served.client.get("/admin/sms/dead-letters")).json()["deadLetters"]
    return listed


async def report(served: Gateway, message_id: str, status: str) -> None:
    body = json.dumps({"messageId": message_id, "status": status}).encode()
    signature = "sha256=" + hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
    answer = await served.client.post("/api/receipts/webhook", content=body, headers={"X-Signature": signature})
    assert answer.status_code == 204, answer.text


@pytest.mark.parametrize("log", LOGS)
async def test_a_late_answer_makes_a_message_unknown_and_a_receipt_resolves_it(
    request: pytest.FixtureRequest, address: str, log: str
) -> None:
    provider = Recorded(address, f"late-{log}")
    provider.behave(delay=LATE_SECONDS)
    async with gateway(**stores(request, log), sms=webhook(provider)) as served:
        ids = await send_some(served, 4)
        await until_all(served, ids, "unknown")
        await report(served, ids[0], "delivered")
        await report(served, ids[1], "failed")
        assert [(await shown(served, message_id))["status"] for message_id in ids] == [
            "delivered",
            "failed",
            "unknown",
            "unknown",
        ]
        held = await shown(served, ids[2])
        assert (held["attempts"], held["provider"], held["sentAt"], held["failedAt"]) == (1, "webhook", None, None)
        listed = (await served.client.get("/api/messages", params={"status": "unknown"})).json()["messages"]
        assert {message["messageId"] for message in listed} == set(ids[2:])
        # Longer than two pauses between attempts: another message has gone out meanwhile.
        provider.behave()
        (later,) = await send_some(served, 1)
        await until_all(served, [later], "sent")
        assert Counter(provider.ids()) == Counter([*ids, later])
        assert await letters(served) == []


@pytest.mark.parametrize(
    "behaviour",
    [
        {"cut": True},
        {"status": 500},
        {"status": 502, "body": "<html>bad gateway</html>"},
        {"status": 409},
        {"status": 200, "headers": {"Content-Type": "text/html"}, "body": "please log in"},
        {"status": 200, "body": "<!doctype html><title>Welcome</title>"},
        {"status": 200, "headers": {"Content-Length": "1000"}, "delay": 0.1, "body": '{"id'},
    ],
    ids=["cut", "500", "502", "409", "html", "doctype", "half"],
)
async def test_an_answer_that_proves_nothing_is_unknown(
    tmp_path: Path, address: str, behaviour: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    provider = Recorded(address, f"nothing-{request.node.callspec.id}")
    provider.behave(**behaviour)
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=webhook(provider)) as served:
        ids = await send_some(served, 2)
        await until_all(served, ids, "unknown")
        assert sorted(provider.ids()) == sorted(ids)


@pytest.mark.parametrize(("status", "log"), [(429, "sqlite"), (503, "sqlite"), (429, "postgres"), (429, "kafka")])
async def test_a_provider_that_throttles_costs_no_attempt(
    request: pytest.FixtureRequest, address: str, status: int, log: str
) -> None:
    """429 without Retry-After; 503 with it."""
    provider = Recorded(address, f"busy-{status}-{log}")
    provider.behave(status=status, headers={} if status == 429 else {"Retry-After": "0"})
    async with gateway(**stores(request, log), sms=webhook(provider)) as served:
        (message_id,) = await send_some(served, 1)
        await eventually(lambda: len(provider.calls()) > 3, within=30)
        provider.behave()
        await until_all(served, [message_id], "sent")
        assert (await shown(served, message_id))["attempts"] == 1


@pytest.mark.parametrize("log", LOGS)
async def test_the_next_provider_needs_proof_that_the_first_did_not_take_it(
    request: pytest.FixtureRequest, address: str, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    own = f"{address}/{log}"
    monkeypatch.setenv(ADDRESS, own)
    first, second = Recorded(own, "first"), Recorded(own, "second")
    module = "tests.faults.recording_provider"
    sms = {"sender": "inline", "providers": f"a={module}:first,b={module}:second", "timeout_seconds": TIMEOUT_SECONDS}
    async with gateway(**stores(request, log), sms=sms) as served:
        first.behave(delay=LATE_SECONDS)
        late = await send_some(served, 4)
        await until_all(served, late, "unknown")
        assert (sorted(first.ids()), second.ids()) == (sorted(late), [])
        first.behave(status=503)
        refused = await send_some(served, 3)
        await until_all(served, refused, "sent")
        assert sorted(second.ids()) == sorted(refused)


@pytest.mark.parametrize("log", LOGS)
async def test_the_operator_may_choose_to_resend(request: pytest.FixtureRequest, address: str, log: str) -> None:
    """The same provider gets the message again, under the same id; a refusal then proves nothing."""
    provider = Recorded(address, f"resend-{log}")
    provider.behave(delay=LATE_SECONDS)
    sms = webhook(provider, on_unknown="webhook=resend")
    async with gateway(**stores(request, log), sms=sms) as served:
        (taken,) = await send_some(served, 1)
        await eventually(lambda: len(provider.calls()) > 1, within=30)
        provider.behave()
        await until_all(served, [taken], "sent")
        assert set(provider.ids()) == {taken}
        provider.behave(cut=True)
        (refused,) = await send_some(served, 1)
        await eventually(lambda: refused in provider.ids(), within=30)
        provider.behave(status=422)
        await until_all(served, [refused], "unknown")
        assert "refused after an unknown attempt" in (await shown(served, refused))["reason"]


async def test_the_operator_may_choose_to_fail(tmp_path: Path, address: str) -> None:
    provider = Recorded(address, "fail")
    provider.behave(cut=True)
    sms = webhook(provider, on_unknown="fail")
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
        (message_id,) = await send_some(served, 1)
        await until_all(served, [message_id], "failed")
        assert provider.ids() == [message_id]
        (letter,) = await letters(served)
        assert letter["reason"].startswith("unknown: ")


@pytest.mark.parametrize("log", ["sqlite", "postgres"])
async def test_a_message_that_stays_unknown_becomes_a_dead_letter_that_says_so(
    request: pytest.FixtureRequest, address: str, log: str
) -> None:
    provider = Recorded(address, f"given-up-{log}")
    provider.behave(cut=True)
    async with gateway(**stores(request, log), sms=webhook(provider, hold_for="PT2S")) as served:
        resolved, given_up = await send_some(served, 2)
        await until_all(served, [resolved, given_up], "unknown")
        await report(served, resolved, "delivered")
        await eventually(lambda: _has_letters(served), within=30)
        (letter,) = await letters(served)
        assert letter["messageId"] == given_up
        assert letter["reason"].startswith("unknown: the connection ended before the answer")
        assert (await shown(served, given_up))["status"] == "unknown"
        # A receipt that comes even later resolves it, and there is nothing to redrive.
        await report(served, given_up, "delivered")
        assert await letters(served) == []
        assert sorted(provider.ids()) == sorted([resolved, given_up])


async def _has_letters(served: Gateway) -> bool:
    return bool(await letters(served))


async def test_a_price_is_recorded(tmp_path: Path, address: str) -> None:
    provider = Recorded(address, "priced")
    provider.behave(body='{"id": "p-1", "segments": 2, "price": "0.0750", "currency": "EUR"}')
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=webhook(provider)) as served:
        (message_id,) = await send_some(served, 1)
        await until_all(served, [message_id], "sent")
        status = await shown(served, message_id)
        assert (status["price"], status["currency"], status["segments"]) == ("0.0750", "EUR", 2)


async def test_a_message_that_expires_while_it_is_put_aside_is_expired(tmp_path: Path, address: str) -> None:
    """Also in quiet hours, which end later."""
    provider = Recorded(address, "quiet")
    sms = webhook(provider, quiet_hours="00:00-23:59")
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
        user = new_user()
        assert (await served.configure(user, 100, 60)).status_code == 200
        ids = []
        for expires_in in ("PT1H", "PT1S"):
            body = {"userId": user, "message": "Hello", "expiresIn": expires_in}
            ids.append((await served.client.post("/api/send", json=body)).json()["messageId"])
        await until_all(served, ids[1:], "expired")
        assert (await shown(served, ids[0]))["status"] == "queued"
        assert provider.ids() == []
