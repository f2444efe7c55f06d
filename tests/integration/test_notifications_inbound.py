"""Messages that people send: what providers post, what they are answered, and who gets messages afterwards."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx2 as httpx
import pytest

from tests.integration.notification_gateway import LOGS, Gateway, gateway, new_user, stores

ANN, BOB = "+491701234567", "+491701234568"
INBOUND = "https://me.example/api/inbound/twilio"
TWILIO = {
    "providers": "twilio",
    "twilio_account_sid": "AC1",
    "twilio_auth_token": "secret",
    "twilio_from": "+15005550006",
    "twilio_inbound_url": INBOUND,
}
WEBHOOK = {"webhook_url": "http://127.0.0.1:1/sms", "webhook_hmac_key": "key"}


async def by_twilio(served: Gateway, sid: str, text: str, phone: str = ANN, token: str = "secret") -> httpx.Response:
    """What Twilio posts, signed by its algorithm."""
    fields = {"MessageSid": sid, "From": phone, "To": "+15005550006", "Body": text, "NumMedia": "0"}
    signed = INBOUND + "".join(name + fields[name] for name in sorted(fields))
    signature = base64.b64encode(hmac.new(token.encode(), signed.encode(), hashlib.sha1).digest()).decode()
    headers = {"X-Twilio-Signature": signature, "Content-Type": "application/x-www-form-urlencoded"}
    return await served.client.post("/api/inbound/twilio", content=urlencode(fields), headers=headers)


async def by_webhook(served: Gateway, document: Mapping[str, Any], key: bytes = b"key") -> httpx.Response:
    body = json.dumps(document).encode()
    headers = {"X-Signature": "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()}
    return await served.client.post("/api/inbound/webhook", content=body, headers=headers)


def spoken(answer: httpx.Response) -> list[str | None]:
    """The messages of a TwiML document."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/xml")
    root = ElementTree.fromstring(answer.text)
    assert root.tag == "Response"
    return [message.text for message in root]


async def opted_out(served: Gateway) -> list[str]:
    return [entry["phone"] for entry in (await served.client.get("/api/optouts")).json()["optouts"]]


@pytest.mark.parametrize("log", LOGS)
async def test_twilios_stop_and_start_decide_who_gets_messages(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    user = new_user()
    replies = {"stop": "Bye & <good> luck", "help": "Call us"}
    async with gateway(**stores(request, log), sms={**TWILIO, "inbound_replies": replies}) as served:
        await served.configure(user, 9, 5)

        async def sent() -> int:
            answer = await served.client.post("/api/send", json={"userId": user, "message": "hello", "to": ANN})
            return answer.status_code

        assert await sent() == 200
        assert spoken(await by_twilio(served, "SM1", "Stopp!")) == ["Bye & <good> luck"]
        assert (await opted_out(served), await sent()) == ([ANN], 403)
        (entry,) = (await served.client.get("/api/optouts")).json()["optouts"]
        assert entry["reason"] == "STOP, received by twilio"
        assert spoken(await by_twilio(served, "SM2", "Info")) == ["Call us"]
        assert (await opted_out(served), await sent()) == ([ANN], 403)
        assert len(spoken(await by_twilio(served, "SM3", "start"))) == 1
        assert (await opted_out(served), await sent()) == ([], 200)
        assert spoken(await by_twilio(served, "SM1", "Stopp!")) == ["Bye & <good> luck"], "the same reply"
        assert await opted_out(served) == [], "a repeated delivery changes nothing"


@pytest.mark.parametrize("log", LOGS)
async def test_deliveries_of_one_message_at_once_change_one_thing(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    async with gateway(**stores(request, log), sms=WEBHOOK) as served:
        stop = {"id": "in-1", "from": ANN, "text": "STOP"}
        answers = await asyncio.gather(*(by_webhook(served, stop) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["reply"] for answer in answers}) == 1
        assert await opted_out(served) == [ANN]
        assert (await by_webhook(served, {"id": "in-2", "from": ANN, "text": "START"})).status_code == 200
        await asyncio.gather(*(by_webhook(served, stop) for _ in range(8)))
        assert await opted_out(served) == []


async def test_anything_else_is_noted_without_its_text_and_gets_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    async with gateway(database_url=database, sms=WEBHOOK) as served:
        answer = await by_webhook(served, {"id": "in-1", "from": BOB, "text": "my code is 4711"})
        assert (answer.status_code, answer.json()) == (200, {"reply": None})
        assert await opted_out(served) == []
    assert "webhook received a message from +49…68" in caplog.messages
    assert "4711" not in caplog.text
    assert BOB not in caplog.text
    assert b"4711" not in (tmp_path / "gateway.db").read_bytes()
    async with gateway(database_url=f"sqlite:///{tmp_path / 'other.db'}", sms=TWILIO) as served:
        assert spoken(await by_twilio(served, "SM1", "hello")) == []


async def test_what_is_not_signed_or_no_message_changes_nothing(tmp_path: Path) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=TWILIO) as served:
        assert (await by_twilio(served, "SM1", "STOP", token="wrong")).status_code == 403
        for sid, phone, field in (("", ANN, "MessageSid"), ("SM1", "12345", "From"), ("SM1", "", "From")):
            refused = await by_twilio(served, sid, "STOP", phone)
            assert (refused.status_code, refused.json()["field"]) == (400, field)
        assert (await served.client.post("/api/inbound/webhook", content=b"{}")).status_code == 404
        assert await opted_out(served) == []
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=WEBHOOK) as served:
        stop = {"id": "in-1", "from": ANN, "text": "STOP"}
        assert (await by_webhook(served, stop, b"wrong")).status_code == 403
        not_ascii = [(b"X-Signature", "sha256=\u00e9".encode("latin-1"))]
        assert (await served.client.post("/api/inbound/webhook", content=b"{}", headers=not_ascii)).status_code == 403
        for wrong, field in (
            ({**stop, "id": ""}, "id"),
            ({**stop, "from": 5}, "from"),
            ({**stop, "text": None}, "text"),
            ({"id": "in-1"}, "body"),
        ):
            refused = await by_webhook(served, wrong)
            assert (refused.status_code, refused.json()["field"]) == (400, field)
        assert await opted_out(served) == []


async def test_words_and_replies_are_settings(tmp_path: Path) -> None:
    words = {"inbound_words": json.dumps({"stop": ["Schluss"]}), "inbound_replies": json.dumps({"stop": ""})}
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms={**WEBHOOK, **words}) as served:
        answer = await by_webhook(served, {"id": "in-1", "from": ANN, "text": "STOP"})
        assert (answer.json(), await opted_out(served)) == ({"reply": None}, [])
        answer = await by_webhook(served, {"id": "in-2", "from": ANN, "text": "schluss."})
        assert (answer.json(), await opted_out(served)) == ({"reply": None}, [ANN])
