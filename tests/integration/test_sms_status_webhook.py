"""What became of messages, posted to the caller: judged by the caller's server."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from paceline.dispatch.stores.tables import queue
from paceline.errors import ConfigurationError
from paceline.sql.engine import Database
from paceline.sql.outbox import SqlOutbox
from paceline.testing import eventually
from paceline_sms import Accepted, Receipt, Rejected, SmsMessage, Unknown
from paceline_sms.intake import Intake
from paceline_sms.items import SMS_STATUS
from paceline_sms.service.wiring.followers import followers, tell_of
from paceline_sms.stores.quota_statements import Way
from paceline_sms.stores.sql import SqlDeliveryStore, SqlQuotaStore
from tests.integration.notification_gateway import Gateway, gateway, new_user, stores
from tests.integration.recording_server import Server, recording_server

KEY = "k3y"
TEXT, PHONE = "kangaroo 4711", "+491701234567"


class Provider:
    """Says of each message what its text says."""

    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        if "refuse" in message.text:
            return Rejected("no such number")
        return Unknown("no answer") if "vanish" in message.text else Accepted("p-1")


@pytest.fixture
def caller() -> Iterator[Server]:
    with recording_server() as server:
        yield server


def settings_of(caller: Server) -> dict[str, Any]:
    provider = f"own={__name__}:Provider"
    return {"sender": "inline", "providers": provider, "status_url": f"{caller.url}/sms", "status_hmac_key": KEY}


@pytest.fixture(params=["sqlite", "postgres"])
async def served(request: pytest.FixtureRequest, caller: Server) -> AsyncIterator[Gateway]:
    async with gateway(**stores(request, request.param), sms=settings_of(caller)) as running:
        yield running


async def send(served: Gateway, text: str, **members: Any) -> str:
    user = new_user()
    await served.configure(user, 10, 60)
    body = {"userId": user, "message": text, "to": PHONE, **members}
    message_id: str = (await served.client.post("/api/send", json=body)).json()["messageId"]
    return message_id


def events(caller: Server) -> list[tuple[str, str]]:
    """Message and status of each event that was taken, each with a right signature."""
    taken = []
    for path, headers, body in caller.requests:
        signed = f"{headers['x-timestamp']}.".encode() + body
        assert headers["x-signature"] == "sha256=" + hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
        assert abs(int(headers["x-timestamp"]) - time.time()) < 60
        event = json.loads(body)
        assert (path, headers["idempotency-key"]) == ("/sms", event["id"])
        taken.append((event["messageId"], event["status"]))
    return taken


async def test_each_outcome_is_posted_once_signed_and_without_text_or_number(served: Gateway, caller: Server) -> None:
    ids = {text: await send(served, text) for text in (TEXT, "refuse", "vanish")}
    expected = {(ids[TEXT], "sent"), (ids["refuse"], "failed"), (ids["vanish"], "unknown")}
    await eventually(lambda: set(events(caller)) == expected, within=30)
    assert len(caller.requests) == 3
    (failed,) = [json.loads(body) for _, _, body in caller.requests if b'"failed"' in body]
    assert (failed["reason"], failed["provider"], failed["attempts"]) == ("no such number", "own", 1)
    posted = b"".join(body for _, _, body in caller.requests)
    assert [secret in posted for secret in (b"kangaroo", PHONE[1:].encode())] == [False, False]


async def test_a_receipt_and_a_cancellation_are_events(served: Gateway, caller: Server) -> None:
    messages = served.app.state.services.app("sms").messages
    vanished = await send(served, "vanish")
    await eventually(lambda: events(caller) == [(vanished, "unknown")], within=30)
    assert await messages.receive(Receipt("own", True, vanished)) is not None
    await eventually(lambda: events(caller)[1:] == [(vanished, "delivered")], within=30)
    assert await messages.receive(Receipt("own", True, vanished)) == -1.0
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))
    scheduled = await send(served, TEXT, sendAt=tomorrow)
    assert (await served.client.delete(f"/api/messages/{scheduled}")).status_code == 200
    await eventually(lambda: events(caller)[2:] == [(scheduled, "cancelled")], within=30)


async def test_an_event_is_tried_again_until_it_is_taken(served: Gateway, caller: Server) -> None:
    caller.answers = [(500, {}, b""), (404, {}, b""), (204, {}, b"")]
    sent = await send(served, TEXT)
    await eventually(lambda: events(caller) == [(sent, "sent")] * 3, within=60)
    assert len({json.loads(body)["id"] for _, _, body in caller.requests}) == 1

    async def is_done() -> bool:
        stats = (await served.client.get(f"/admin/dispatch/{SMS_STATUS}/stats")).json()
        return bool(stats["depth"]["COMPLETED"] == 1)

    await eventually(is_done, within=30)


async def test_an_event_that_nobody_takes_is_a_dead_letter_and_no_message_waits(
    served: Gateway, caller: Server
) -> None:
    changed = await served.client.patch(f"/admin/dispatch/{SMS_STATUS}", json={"maxDispatchRetries": 1})
    assert changed.status_code == 200
    caller.answers = [(410, {}, b"")] * 50
    sent = await send(served, TEXT)

    async def dead() -> list[Any]:
        path = f"/admin/dispatch/{SMS_STATUS}/items?status=DEAD_LETTER"
        items: list[Any] = (await served.client.get(path)).json()["items"]
        return items

    await eventually(dead, within=60)
    (letter,) = await dead()
    assert (letter["itemId"].startswith(f"{sent}:sent:"), "410" in json.dumps(letter)) == (True, True)
    assert (await served.client.get(f"/api/messages/{sent}")).json()["status"] == "sent"


async def test_a_message_that_is_cancelled_on_its_way_to_kafka_is_an_event(caller: Server, tmp_path: Path) -> None:
    sms = settings_of(caller) | {"sender": "worker"}
    async with gateway(database_url=f"sqlite:///{tmp_path / 'sms.db'}", sms=sms) as served:
        shared, user = Database(served.settings.database_url), new_user()
        messages = SqlDeliveryStore(
            shared, topic="out", followers=followers(served.settings), tell=tell_of(served.settings)
        )
        intake = Intake(SqlQuotaStore(shared, way=Way("out")), SqlOutbox(shared))
        await intake.configure(user, 10, 60)
        sent = await intake.send(user, TEXT)
        assert await messages.cancel(sent.message_id)
        query = sa.select(queue.c.item_id).where(queue.c.item_type == SMS_STATUS)
        (event_id,) = await shared.read(lambda connection: connection.execute(query).scalars().all())
        assert event_id.startswith(f"{sent.message_id}:cancelled:")
        await intake.close()
        await shared.close()


async def test_a_webhook_without_a_key_is_refused_at_the_start(caller: Server, tmp_path: Path) -> None:
    sms = {"sender": "inline", "status_url": caller.url}
    with pytest.raises(ConfigurationError, match="PACELINE_SMS_STATUS_HMAC_KEY"):
        async with gateway(database_url=f"sqlite:///{tmp_path / 'sms.db'}", sms=sms):
            pass
