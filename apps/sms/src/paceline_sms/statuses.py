"""Events of messages, posted to the caller's webhook: at least once, signed with their time."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Protocol

from paceline.clock import Clock, SystemClock
from paceline.dispatch.current_task import current_task
from paceline.dispatch.outcomes import Retry
from paceline.downstream.downstream import Downstream
from paceline_sms.execution import report
from paceline_sms.provider import Unavailable, Unknown
from paceline_sms.providers.http_calls import Answer


class Posting(Protocol):
    """The part of `HttpCalls` that this needs."""

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer | Unknown: ...


class StatusDelivery:
    """The execution of events. Any 2xx is success; everything else is tried again."""

    def __init__(self, calls: Posting, key: str, downstream: Downstream, clock: Clock | None = None) -> None:
        self._calls = calls
        self._key = key.encode()
        self.downstream = downstream
        """Its host: each execution is a call of it."""
        self._clock = clock or SystemClock()

    async def __call__(self, item_id: str, context: Any) -> None:
        body = json.dumps(context).encode()
        timestamp = str(self._clock.now_us() // 1_000_000)
        headers = {
            "content-type": "application/json",
            "idempotency-key": item_id,
            "x-timestamp": timestamp,
            "x-signature": signature(self._key, timestamp, body),
        }
        try:
            answer = await self._calls.post(body, headers)
        except Unavailable as error:
            await report(current_task().call, error)
            raise Retry(str(error)) from error
        if isinstance(answer, Unknown):
            raise Retry(answer.reason)
        if not answer.is_success:
            raise Retry(f"the webhook answered {answer.status}")


def signature(key: bytes, timestamp: str, body: bytes) -> str:
    """Of the time and the body: an old event can't be sent again as a new one."""
    return "sha256=" + hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
