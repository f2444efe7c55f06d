"""Shared by the HTTP clients: delays a request for our own limit and for the server's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict, Unpack

from paceline.errors import RateLimitExceeded
from paceline.integrations.limit import Cost, Exempt, Limit, Maybe, OfResponse, Plans, Response, resolved
from paceline.integrations.request_limiter import (
    RESPONSE_TTL,
    Call,
    RequestLimiter,
    ResponseCharge,
    call_directly,
    run_blocking,
)
from paceline.integrations.service_limits import Pauses
from paceline.limits._blocking import Limiter
from paceline.limits.keys import KeyValue, everyone
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision, Reason
from paceline.options import check_wait

LONGEST_PAUSE = 3600.0
SERVER = "server"
"""The plan's name in the refusal of a call by the server's own limit."""

OutboundKey: TypeAlias = str | Callable[[Any], Maybe[KeyValue]]
"""A key, or a function of the library's request; `None` if the request is not limited."""


class OutboundOptions(TypedDict, total=False):
    """The options of every client integration. Functions are given the library's own request, or the `Response`; in
    async clients those of the request may be async.

    - `exempt`: a function of the request; where it returns true, the request is not limited, and counted as exempt.
    - `charge_when`: a function of the response; where it returns false, the cost is refunded.
    - `cost_of_response`: a function of the response that returns the actual cost; `cost` is reserved meanwhile.

    The cost is settled when the head of the response arrives. A request that ends without a response stays charged as
    reserved: the server may have received it. A place of a concurrency limit is held and renewed until the response has
    been read or closed, or the request has failed.
    """

    exempt: Exempt | None
    charge_when: OfResponse[bool] | None
    cost_of_response: OfResponse[int] | None


class OutboundLimiter:
    """Limits the requests of a client to the servers it calls.

    `max_wait` is the longest delay of one request in seconds, for our own limit and the server's together. A request
    that would wait longer is refused with `RateLimitExceeded`.

    Raises:
        ConfigurationError: there is no such plan, or an option can't be used.
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        plans: Plans,
        key: OutboundKey | None,
        cost: Cost,
        max_wait: float,
        monotonic: Callable[[], float] = time.monotonic,
        **options: Unpack[OutboundOptions],
    ) -> None:
        check_wait("max_wait", max_wait)
        self._limit = Limit(plans, key=everyone("host"), cost=cost, **options)
        self._limiter: Any = limiter
        self._request_limiter = RequestLimiter(limiter)
        self._request_limiter.require([self._limit])
        self._key = key
        self._max_wait = max_wait
        self._monotonic = monotonic
        self._pauses = Pauses(LONGEST_PAUSE, monotonic)

    def wait(
        self, host: str, request: Any = None, sleep: Callable[[float], object] = time.sleep
    ) -> Sequence[ResponseCharge]:
        """Waits until a request to `host` may be sent; returns the charges to settle by its response.

        Raises:
            RateLimitExceeded: it may not be sent within `max_wait`.
        """
        return run_blocking(self._wait(host, _Source(request), call_directly, sleep))

    async def wait_async(
        self, host: str, request: Any = None, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> Sequence[ResponseCharge]:
        """`wait` in an event loop."""
        return await self._wait(host, _Source(request), _call_and_await, sleep)

    def record_response(self, host: str, status: int, header: Callable[[str], str | None]) -> None:
        """Records the server's limits, from a response."""
        self._pauses.record_response(host, status, header)

    def settle(
        self, charges: Sequence[ResponseCharge], request: Any, status: int, response: Any
    ) -> Sequence[ResponseCharge]:
        """Settles charges by the response; returns the places to `release` when the response ends. An error in a
        charge's function is logged, not raised."""
        if not charges:
            return charges
        places, costs = _split(charges)
        if costs:
            self._request_limiter.settle(costs, _response_of(request, status, response))
        return places

    async def settle_async(
        self, charges: Sequence[ResponseCharge], request: Any, status: int, response: Any
    ) -> Sequence[ResponseCharge]:
        """`settle` in an event loop."""
        if not charges:
            return charges
        places, costs = _split(charges)
        if costs:
            await self._request_limiter.settle_async(costs, _response_of(request, status, response))
        return places

    def release(self, charges: Sequence[ResponseCharge]) -> None:
        """Frees the places of a request that has failed, or whose response has ended. Costs stay as reserved."""
        if charges:
            self._request_limiter.settle(charges, None)

    async def release_async(self, charges: Sequence[ResponseCharge]) -> None:
        """`release` in an event loop."""
        if charges:
            await self._request_limiter.settle_async(charges, None)

    def release_soon(self, places: Sequence[ResponseCharge]) -> None:
        """`release_async` for a callback in an event loop, which can't await it."""
        self._request_limiter.settle_soon(places, None)

    async def _wait(
        self, host: str, source: Any, call: Call, sleep: Callable[[float], Any]
    ) -> Sequence[ResponseCharge]:
        deadline = self._monotonic() + self._max_wait
        plans, key = await self._plans_and_key(host, source)
        if key is None:
            self._limiter.record_exempt(self._limit.label)
        while True:
            while pause := self._pause(host, deadline):
                await call(sleep, pause)
            if key is None:
                return ()
            charges: list[ResponseCharge] = []
            try:
                decision = await self._charge(key, plans, self._limit.cost_of(source), deadline, call, charges)
                if not decision.allowed:
                    raise RateLimitExceeded(decision)
                # The server may have requested a pause while we waited for our own limit.
                if not self._pause(host, deadline):
                    return charges
            except BaseException:
                await self._request_limiter.give_back(charges, call)
                raise
            await self._request_limiter.give_back(charges, call)

    async def _plans_and_key(self, host: str, source: Any) -> tuple[tuple[str, ...], str | None]:
        """The plans and the key; none if the request is not limited."""
        limit = self._limit
        if limit.exempt is not None and await resolved(limit.exempt(source.native)):
            return (), None
        plans = await limit.plans_of(source)
        key: Any = self._key or host
        if callable(key) and plans:
            key = await resolved(key(source.native))
        return plans, str(key) if plans and key is not None else None

    async def _charge(
        self, key: str, plans: Sequence[str], cost: int, deadline: float, call: Call, charges: list[ResponseCharge]
    ) -> Decision:
        """Charges a request as soon as there is room. Adds what its response settles, and its places, to `charges`."""
        limiter, limit = self._limiter, self._limit
        if limiter.holds_places and (places := await self._request_limiter.concurrency_limits(key, plans)):
            # Without a charge by response, all plans are one decision.
            held_plans = places if limit.by_response else plans
            held = limiter.hold(key, held_plans, cost, timeout=self._left(deadline))
            charges.append(ResponseCharge(limit, cost, held))
            decision: Decision = await call(held.enter)
            plans = [plan for plan in plans if plan not in held_plans]
            if not plans or not decision.allowed:
                return decision
        if limit.by_response:
            timeout = self._left(deadline)
            reservation = await call(limiter.reserve, key, plans, cost, ttl=RESPONSE_TTL, timeout=timeout)
            charges.append(ResponseCharge(limit, cost, reservation))
            decision = reservation.decision
        else:
            decision = await call(limiter.wait, key, plans, cost, timeout=self._left(deadline))
        return decision

    def _left(self, deadline: float) -> float:
        return max(deadline - self._monotonic(), 0.0)

    def _pause(self, host: str, deadline: float) -> float:
        wait = self._pauses.remaining(host)
        if wait and wait > deadline - self._monotonic():
            wait_us = round(wait * 1_000_000)
            raise RateLimitExceeded(Decision.of(False, 0, 0, wait_us, wait_us, SERVER, Reason.DENIED))
        return wait


class _Source(NamedTuple):
    """A request for a `Limit`."""

    native: Any


def _split(charges: Sequence[ResponseCharge]) -> tuple[list[ResponseCharge], list[ResponseCharge]]:
    """Places, and costs."""
    return [charge for charge in charges if charge.is_place], [charge for charge in charges if not charge.is_place]


def _response_of(request: Any, status: int, response: Any) -> Response:
    return Response(request, status, response.headers.items(), native=response)


async def _call_and_await(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return await method(*args, **options)
