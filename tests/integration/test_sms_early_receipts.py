"""Receipts that arrive before the answer to their message, as a fast provider's do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from paceline.testing import eventually
from tests.integration.notification_gateway import Gateway, gateway, new_user

RECEIPTS = "https://me.example/api/receipts/twilio"


async def report(served: Gateway, sid: str, status: str = "delivered") -> int:
    """Twilio's report, signed; the status of our answer."""
    fields = {"MessageSid": sid, "MessageStatus": status, "ErrorCode": "30003"}
    signed = RECEIPTS + "".join(name + fields[name] for name in sorted(fields))
    signature = base64.b64encode(hmac.new(b"secret", signed.encode(), hashlib.sha1).digest()).decode()
    headers = {"X-Twilio-Signature": signature, "Content-Type": "application/x-www-form-urlencoded"}
    answer = await served.client.post("/api/receipts/twilio", content=urlencode(fields), headers=headers)
    return answer.status_code


@asynccontextmanager
async def twilio(before_answer: Callable[[str], Awaitable[object]]) -> AsyncIterator[str]:
    """A Twilio that calls `before_answer` with the SID before it answers."""
    sids: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                sids.append(f"SM{len(sids)}")
                await before_answer(sids[-1])
                body = b'{"sid": "%b"}' % sids[-1].encode()
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def settings(url: str, folder: Path) -> dict[str, Any]:
    return {
        "database_url": f"sqlite:///{folder / 'sms.db'}",
        "sms": {
            "sender": "inline",
            "providers": "twilio",
            "twilio_url": url,
            "twilio_account_sid": "AC1",
            "twilio_auth_token": "secret",
            "twilio_from": "+15005550006",
            "twilio_receipts_url": RECEIPTS,
        },
    }


async def sent(served: Gateway) -> str:
    user = new_user()
    body = {"userId": user, "rateLimit": 5, "timeWindow": 5, "phone": "+491701234567"}
    assert (await served.client.post("/api/config", json=body)).status_code == 200
    return str((await served.send(user)).json()["messageId"])


async def status(served: Gateway, message_id: str) -> dict[str, Any]:
    document: dict[str, Any] = (await served.client.get(f"/api/messages/{message_id}")).json()
    return document


async def test_a_receipt_before_the_answer_is_kept_and_applied(tmp_path: Path) -> None:
    answers: list[int] = []
    outcome = {"SM0": "delivered", "SM1": "undelivered"}

    async def before_answer(sid: str) -> None:
        answers.append(await report(served, sid, outcome[sid]))

    async with twilio(before_answer) as url, gateway(**settings(url, tmp_path)) as served:
        for expected in ("delivered", "failed"):
            message_id = await sent(served)

            async def is_reported(message_id: str = message_id, expected: str = expected) -> bool:
                return bool((await status(served, message_id))["status"] == expected)

            await eventually(is_reported, within=20)
        assert (await status(served, message_id))["reason"] == "error 30003"
    assert answers == [204, 204]


async def test_a_receipt_that_names_nothing_is_refused_while_nothing_is_sent(tmp_path: Path) -> None:
    async def before_answer(_sid: str) -> None:
        pass

    async with twilio(before_answer) as url, gateway(**settings(url, tmp_path)) as served:
        message_id = await sent(served)

        async def is_sent() -> bool:
            return bool((await status(served, message_id))["status"] == "sent")

        await eventually(is_sent, within=20)
        assert await report(served, "SM-other") == 404
        assert await report(served, "SM0") == 204
        assert (await status(served, message_id))["status"] == "delivered"
