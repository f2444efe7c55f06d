"""The simulator as a small web server.

POST /payments     what the client of the payment API calls
GET  /payments/ID  what the bank knows of a payment: {status, reference} or 404
GET  /calls        every call, in order: {"calls": [{at, paymentId, status, executed}]}
GET  /stats        the record in a few figures
PUT  /behaviour    {tps?, latencyMs?, fail?, lose?, refuse?}: behave otherwise from now on
DELETE /calls      start a new record
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from paceline.errors import InvalidInput
from paceline_payments.downstream.simulator import Answer, Simulator

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MEMBERS = {"tps": "tps", "latencyMs": "latency_ms", "fail": "fail", "lose": "lose", "refuse": "refuse"}
LARGEST_BODY = 1024 * 1024


class SimulatorApp:
    """An ASGI application around a `Simulator`."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        route = scope["method"], scope["path"]
        if route == ("POST", "/payments"):
            await self._pay(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"].startswith("/payments/"):
            await _send_answer(send, self.simulator.inquire(scope["path"].removeprefix("/payments/")))
        elif route == ("GET", "/calls"):
            await _send_json(send, 200, {"calls": [call.to_json() for call in self.simulator.calls]})
        elif route == ("GET", "/stats"):
            await _send_json(send, 200, self.simulator.stats())
        elif route == ("PUT", "/behaviour"):
            await self._behave(receive, send)
        elif route == ("DELETE", "/calls"):
            self.simulator.forget()
            await _send_json(send, 200, {})
        else:
            await _send_json(send, 404, {"reason": "POST /payments, GET /calls, GET /stats, PUT /behaviour"})

    async def _pay(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        keys = [value.decode("latin-1") for name, value in scope["headers"] if name == b"idempotency-key"]
        await _send_answer(send, self.simulator.receive(keys[0] if keys else None, await _read(receive)))

    async def _behave(self, receive: Receive, send: Send) -> None:
        changes = await _read(receive)
        try:
            if not isinstance(changes, dict) or not changes.keys() <= MEMBERS.keys():
                raise InvalidInput("body", f"must be an object with some of {', '.join(MEMBERS)}")
            for name, value in changes.items():
                if not isinstance(value, int | float) or isinstance(value, bool):
                    raise InvalidInput(name, "must be a number")
            self.simulator.behave(**{MEMBERS[name]: value for name, value in changes.items()})
        except InvalidInput as error:
            await _send_json(send, 400, {"reason": str(error)})
        else:
            await _send_json(send, 200, {})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(receive: Receive) -> Any:
    raw = b""
    while True:
        message = await receive()
        raw += message.get("body", b"")
        if not message.get("more_body", False) or len(raw) > LARGEST_BODY:
            break
    try:
        return json.loads(raw)
    except ValueError:
        return None


async def _send_answer(send: Send, answer: Answer) -> None:
    if answer.delay:
        await asyncio.sleep(answer.delay)
    await _send_json(send, answer.status, answer.body, answer.headers)


async def _send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    body = json.dumps(value).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    fields += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
