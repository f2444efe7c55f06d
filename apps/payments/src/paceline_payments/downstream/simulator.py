"""A simulated bank with a limit on calls per second. It can be slow, fail, and lose responses: see `Behaviour`.

It records every call, as evidence for tests.
"""

from __future__ import annotations

import asyncio
import json
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx2

from paceline.clock import Clock, SystemClock
from paceline.errors import InvalidInput

SECOND_US = 1_000_000


class Call(NamedTuple):
    """One call, as it arrived."""

    at_us: int
    payment_id: str
    status: int
    executed: bool
    """This call moved money. False for refusals, failures and repetitions."""

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self.at_us / SECOND_US,
            "paymentId": self.payment_id,
            "status": self.status,
            "executed": self.executed,
        }


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the bank behaves. Shares are of all calls within the limit."""

    tps: int = 50
    """Calls in any sliding second; those beyond are answered 429."""
    latency_ms: float = 20.0
    fail: float = 0.0
    """The share that is answered 503, nothing done."""
    lose: float = 0.0
    """The share that is executed and still answered 500."""
    refuse: float = 0.0
    """The share of payments that is refused for good with 422."""

    def __post_init__(self) -> None:
        if self.tps < 1:
            raise InvalidInput("tps", "must be at least 1")
        if self.latency_ms < 0:
            raise InvalidInput("latencyMs", "must be zero or more")
        for name in ("fail", "lose", "refuse"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(name, "must be a share from 0 to 1")


class Answer(NamedTuple):
    """The response to a caller, `delay` seconds later."""

    status: int
    body: dict[str, Any]
    delay: float
    headers: dict[str, str]


class Simulator:
    """The bank. Idempotent: every payment is executed once, however often it is requested."""

    def __init__(
        self, behaviour: Behaviour | None = None, *, clock: Clock | None = None, seed: int | None = None
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.calls: list[Call] = []
        self.executed: dict[str, str] = {}
        """Payment -> reference, of those whose money moved."""
        self._refused: set[str] = set()
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)
        self._recent: deque[int] = deque()

    def behave(self, **changes: Any) -> None:
        """Changes some of the behaviour."""
        self.behaviour = replace(self.behaviour, **changes)

    def receive(self, key: str | None, body: object) -> Answer:
        """Answers one call that arrives now."""
        now = self._clock.monotonic_us()
        payment_id = str(body.get("paymentId", "")) if isinstance(body, Mapping) else ""
        status, executed, extra, headers = self._decide(now, payment_id, key)
        self.calls.append(Call(now, payment_id, status, executed))
        return Answer(status, extra, self.behaviour.latency_ms / 1000, headers)

    def inquire(self, key: str) -> Answer:
        """What the bank knows of a payment. It counts as a call."""
        now = self._clock.monotonic_us()
        status, body, headers = self._books(now, key)
        self.calls.append(Call(now, key, status, False))
        return Answer(status, body, self.behaviour.latency_ms / 1000, headers)

    def forget(self) -> None:
        """Starts a new record; what was executed stays executed."""
        self.calls.clear()

    def _wait(self, now: int) -> float | None:
        """None if one more call is admitted now; else the seconds until one would be."""
        while self._recent and self._recent[0] <= now - SECOND_US:
            self._recent.popleft()
        if len(self._recent) >= self.behaviour.tps:
            return max((self._recent[0] + SECOND_US - now) / SECOND_US, 0.001)
        self._recent.append(now)
        return None

    def _books(self, now: int, key: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        wait = self._wait(now)
        if wait is not None:
            return 429, {"reason": "too many calls"}, {"Retry-After": f"{wait:.3f}"}
        if key in self.executed:
            return 200, {"status": "EXECUTED", "reference": self.executed[key]}, {}
        if key in self._refused:
            return 200, {"status": "REJECTED", "reason": "account closed"}, {}
        return 404, {"reason": "never seen"}, {}

    def _decide(self, now: int, payment_id: str, key: str | None) -> tuple[int, bool, dict[str, Any], dict[str, str]]:
        wait = self._wait(now)
        if wait is not None:
            return 429, False, {"reason": "too many calls"}, {"Retry-After": f"{wait:.3f}"}
        if not payment_id or key != payment_id:
            return 400, False, {"reason": "paymentId and Idempotency-Key must be the same"}, {}
        if payment_id in self.executed:
            return 200, False, {"status": "EXECUTED", "reference": self.executed[payment_id], "replayed": True}, {}
        if payment_id in self._refused:
            return 422, False, {"status": "REJECTED", "reason": "refused before"}, {}
        return self._fate(payment_id)

    def _fate(self, payment_id: str) -> tuple[int, bool, dict[str, Any], dict[str, str]]:
        behaviour, drawn = self.behaviour, self._random.random()
        if drawn < behaviour.fail:
            return 503, False, {"reason": "out of order"}, {}
        if drawn < behaviour.fail + behaviour.refuse:
            self._refused.add(payment_id)
            return 422, False, {"status": "REJECTED", "reason": "account closed"}, {}
        reference = self.executed[payment_id] = f"BANK-{len(self.executed) + 1:08d}"
        if drawn < behaviour.fail + behaviour.refuse + behaviour.lose:
            return 500, True, {"reason": "the answer was lost"}, {}
        return 201, True, {"status": "EXECUTED", "reference": reference}, {}

    def stats(self) -> dict[str, Any]:
        """The record in a few figures."""
        statuses: dict[str, int] = {}
        for call in self.calls:
            statuses[str(call.status)] = statuses.get(str(call.status), 0) + 1
        return {
            "calls": len(self.calls),
            "executed": len(self.executed),
            "statuses": dict(sorted(statuses.items())),
            "peakPerSecond": peak_per_second(call.at_us for call in self.calls),
        }


def peak_per_second(times_us: Iterable[int]) -> int:
    """The most calls in any sliding second: half open, so two calls exactly a second apart don't share one."""
    times = sorted(times_us)
    return max((bisect_right(times, at + SECOND_US - 1) - index for index, at in enumerate(times)), default=0)


async def leave(request: httpx2.Request) -> None:
    """Returns when the request may leave: what httpcore does around sending it, for a transport without a network."""
    if trace := request.extensions.get("trace"):
        await trace("in_process.send_request_headers.started", {})
        await trace("in_process.send_request_body.complete", {})


class SimulatorTransport(httpx2.AsyncBaseTransport):
    """The simulator in the client's own process: the same client, without a network."""

    def __init__(self, simulator: Simulator, *, pause: Callable[[float], Any] = asyncio.sleep) -> None:
        self._simulator = simulator
        self._pause = pause

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            body = json.loads(request.content)
        except ValueError:
            body = None
        await leave(request)
        if request.method == "GET":
            answer = self._simulator.inquire(unquote(request.url.path.rpartition("/")[2]))
        else:
            answer = self._simulator.receive(request.headers.get("Idempotency-Key"), body)
        if answer.delay:
            await self._pause(answer.delay)
        return httpx2.Response(answer.status, json=answer.body, headers=answer.headers)
