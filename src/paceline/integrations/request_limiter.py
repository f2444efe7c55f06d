"""The request limiter that every web integration shares: the limits of a request, the decision, the HTTP response.

An integration turns its framework's request into a `RequestSource` and calls `admit` (or `admit_async`). If the result
is a `Refusal`, it sends that. If it is an `Admission`, it adds the fields to the response, puts the decision on the
request, and settles the charges when the response is known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar

from paceline.errors import (
    ConfigurationError,
    CostExceedsCapacity,
    InvalidInput,
    NotFound,
    PacelineError,
    RateLimitExceeded,
    StoreUnavailable,
)
from paceline.integrations.limit import (
    Cost,
    Limit,
    LimitOptions,
    OnDenied,
    PathRule,
    Response,
    check_function,
    cost_error,
    plans_error,
    resolved,
)
from paceline.limits import headers
from paceline.limits._blocking import Limiter, Reservation
from paceline.limits._blocking_handles import HeldPlaces
from paceline.limits.handles import AsyncHeldPlaces
from paceline.limits.keys import RequestSource
from paceline.limits.limiter import AsyncLimiter, AsyncReservation
from paceline.limits.model import Decision, Rule
from paceline.limits.rates import SCOPE, is_rate, without_scope

__all__ = ["Cost", "Limit", "LimitOptions", "OnDenied", "PathRule", "RequestLimiter", "Response"]

log = logging.getLogger("paceline.integrations")

T = TypeVar("T")
Charges: TypeAlias = dict[tuple[str, str], int]
"""Costs by key and plan."""
Fields: TypeAlias = list[tuple[str, str]]
"""Response fields, by name."""
Call: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a method of the limiter with its arguments."""

RESPONSE_TTL = 600.0
"""Seconds within which the charge of a response can be settled. After that it stays as reserved."""


class Refusal(NamedTuple):
    """The response of a request that was refused; with the `decision` if a limit denied it."""

    status: int
    fields: Fields
    body: bytes
    decision: Decision | None = None
    on_denied: OnDenied | None = None
    """The application's own function that makes the response instead."""

    @property
    def limit_fields(self) -> Fields:
        """The fields for the application's own response: all but those of the body."""
        return [field for field in self.fields if field[0] != "Content-Type"]


class ResponseCharge(NamedTuple):
    """A reserved cost, to be settled when the response is known; or places of concurrency limits, to be left when the
    request ends."""

    limit: Limit
    cost: int
    reservation: Reservation | AsyncReservation | HeldPlaces | AsyncHeldPlaces

    @property
    def is_place(self) -> bool:
        return isinstance(self.reservation, HeldPlaces | AsyncHeldPlaces)


class Admission(NamedTuple):
    """The result of admitting a request."""

    fields: Fields
    charges: Sequence[ResponseCharge] = ()
    decision: Decision | None = None
    """The decision of a limit that does not block, to be put on the request."""


NOT_LIMITED = Admission([])


class ResponseOptions(TypedDict, total=False):
    """Options of responses: see `RequestLimiter`."""

    partition_keys: bool
    legacy_headers: bool
    on_denied: OnDenied | None


class RequestLimiter:
    """Decides requests by a limiter.

    In an event loop a `Limiter` is called in a thread, unless its store is this process's memory: the loop is never
    blocked. A request without its key is refused with 400. A cost that no plan can charge, also a function's, is the
    application's mistake: it is logged and raised. While the store is unavailable the plans' `on_error` decides.
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        *,
        partition_keys: bool = False,
        legacy_headers: bool = False,
        on_denied: OnDenied | None = None,
    ) -> None:
        if not isinstance(limiter, Limiter | AsyncLimiter):
            raise ConfigurationError("limiter", f"{limiter!r} is neither a Limiter nor an AsyncLimiter")
        self._limiter = limiter
        self._is_async = isinstance(limiter, AsyncLimiter)
        self._waits = not isinstance(limiter, Limiter) or not limiter.in_process
        self._never_waits = self._is_async or not self._waits
        """Whether `limiter.fast_paths` never blocks an event loop. With leases, a `Limiter` waits for the thread that
        refills one."""
        self._partition_keys = partition_keys
        self._legacy_headers = legacy_headers
        self.on_denied = check_function("on_denied", on_denied)
        self._settling: set[asyncio.Task[None]] = set()
        self._known: set[Limit] = set()
        """The limits whose rates the limiter keeps for good."""

    @property
    def limiter(self) -> Limiter | AsyncLimiter:
        return self._limiter

    def require(self, limits: Iterable[Limit]) -> None:
        """Raises an error for limits with unknown plans, before the first request."""
        for limit in limits:
            self._limiter.require(limit.plans)

    def _keep_rates(self, limit: Limit) -> None:
        """Keeps a configured limit's rates at its first request: rates that callers choose may be evicted."""
        if limit not in self._known:
            self._limiter.require(filter(is_rate, limit.plans))
            self._known.add(limit)

    def require_chain(self, limits: Sequence[Limit]) -> None:
        """Raises an error for limits of one decision, if the limiter's store can never decide their keys at once."""
        together = [limit for limit in limits if limit.block and not limit.by_response]
        self._limiter.require((), [limit.key.starts() for limit in together])

    def require_rules(self, rules: Sequence[PathRule]) -> None:
        """Raises an error for rules with unknown plans, or that can't be decided with another that always applies."""
        self.require(rule.limit for rule in rules)
        for first, second in combinations(rules, 2):
            if first.is_covered_by(second) or second.is_covered_by(first):
                self.require_chain((first.limit, second.limit))

    def admit(self, limits: Sequence[Limit], request: RequestSource) -> Admission | Refusal:
        """Decides a request, blocking."""
        if not isinstance(self._limiter, Limiter):
            raise ConfigurationError("limiter", "an AsyncLimiter can't be asked outside an event loop; use a Limiter")
        for limit in limits:
            if limit.key.is_async:
                raise ConfigurationError("key", f"{limit.key.source} is async, which works in async apps only")
        return run_blocking(self._admit(limits, request, call_directly))

    async def admit_async(self, limits: Sequence[Limit], request: RequestSource) -> Admission | Refusal:
        """Decides a request in an event loop."""
        if len(limits) == 1 and limits[0].is_plain:
            limit = limits[0]
            try:
                if not self._limiter.holds_places or not await self._may_hold_places(limit):
                    return await self._admit_plain(limit, limit.key(request))
            except (InvalidInput, StoreUnavailable) as error:
                return error_refusal(error)
        return await self._admit(limits, request, self._call_limiter)

    def settle(self, charges: Iterable[ResponseCharge], response: Response | None) -> None:
        """Settles charges, blocking. Without a response they stay as reserved, and places are freed."""
        run_blocking(self._settle(charges, response, call_directly))

    def cancel(self, charges: Sequence[ResponseCharge]) -> None:
        """Refunds charges, blocking, if something else refused the request."""
        run_blocking(self._cancel(charges, call_directly))

    async def settle_async(self, charges: Iterable[ResponseCharge], response: Response | None) -> None:
        """Settles charges in an event loop. Cancelling the caller does not stop it."""
        await self._finish(self._settle(charges, response, self._call_limiter))

    async def _admit_plain(self, limit: Limit, key: str | Awaitable[str | None] | None) -> Admission | Refusal:
        """The common case: one plan at one cost."""
        try:
            self._keep_rates(limit)
            if key is not None and not isinstance(key, str):
                key = await key
            if key is None:
                return self._exempt(limit)
            decision = await self._call_limiter(self._limiter.acquire, key, limit.plans, limit.cost)
            return self._answer(decision, [(key, limit.plans[0])])
        except (InvalidInput, StoreUnavailable) as error:
            return error_refusal(error)

    async def _admit(self, limits: Sequence[Limit], request: RequestSource, call: Call) -> Admission | Refusal:
        """Reserves charges by response, then decides the rest at once. A denial charges nothing: reservations are
        cancelled. Limits that do not block come last, so they count only requests that were admitted."""
        pending: list[ResponseCharge] = []
        try:
            admission = await self._admit_all(limits, request, call, pending)
        except (InvalidInput, StoreUnavailable) as error:
            await self.give_back(pending, call)
            return error_refusal(error)
        except BaseException:  # including a client that disconnected
            await self.give_back(pending, call)
            raise
        if isinstance(admission, Refusal):
            await self.give_back(pending, call)
        return admission

    async def _admit_all(
        self, limits: Sequence[Limit], request: RequestSource, call: Call, pending: list[ResponseCharge]
    ) -> Admission | Refusal:
        charges: Charges = {}
        chain_limits: list[Limit] = []
        watching: list[tuple[Limit, str, tuple[str, ...], int]] = []
        fields: Fields = []
        watched: Decision | None = None
        for limit in limits:
            self._keep_rates(limit)
            if limit.exempt is not None and await resolved(limit.exempt(request.native)):
                self._exempt(limit)
                continue
            plans = await limit.plans_of(request)
            key = await resolved(limit.key(request)) if plans else None
            if key is None:
                self._exempt(limit)
                continue
            cost = limit.cost_of(request)
            if self._limiter.holds_places and (places := await self.concurrency_limits(key, plans)):
                plans = tuple(plan for plan in plans if plan not in places)
                answer = await self._hold(limit, key, places, cost, call, pending)
                if isinstance(answer, Refusal):
                    return answer
                watched = watched if limit.block else answer.decision
                fields = headers.merge(fields, answer.fields)
                if not plans:
                    continue
            if not limit.by_response and limit.block:
                chain_limits.append(limit)
                for plan in plans:
                    charges[key, plan] = max(cost, charges.get((key, plan), 0))
                continue
            if not limit.by_response:
                watching.append((limit, key, plans, cost))
                continue
            answer = await self._reserve(limit, key, plans, cost, call, pending)
            if isinstance(answer, Refusal):
                return answer
            watched = watched if limit.block else answer.decision
            fields = headers.merge(fields, answer.fields)
        if charges:
            answer = self._answer(await call(self._limiter.acquire_chain, chain(charges)), charges, chain_limits)
            if isinstance(answer, Refusal):
                return answer
            fields = headers.merge(fields, answer.fields)
        for limit, key, plans, cost in watching:
            watched = await call(self._limiter.acquire, key, plans, cost)
            answer = self._answer(watched, [(key, plan) for plan in plans], (limit,))
            fields = headers.merge(fields, _fields_of_pass(answer))
        return Admission(fields, tuple(pending), None if watched is None else unscoped(watched))

    async def _reserve(
        self,
        limit: Limit,
        key: str,
        plans: Sequence[str],
        cost: int,
        call: Call,
        pending: list[ResponseCharge],
    ) -> Admission | Refusal:
        """Reserves the charge that the response settles. A limit that does not block always admits."""
        reservation = await call(self._limiter.reserve, key, plans, cost, ttl=RESPONSE_TTL)
        if reservation:
            pending.append(ResponseCharge(limit, cost, reservation))
        return self._part_answer(reservation.decision, limit, key, plans)

    async def _hold(
        self,
        limit: Limit,
        key: str,
        plans: Sequence[str],
        cost: int,
        call: Call,
        pending: list[ResponseCharge],
    ) -> Admission | Refusal:
        """Holds places until the request ends. A limit that does not block always admits."""
        held = self._limiter.hold(key, plans, cost)
        place = ResponseCharge(limit, cost, held)
        pending.append(place)  # first: if the caller is cancelled, a thread may still be taking the place
        decision = await call(held.enter)
        if not decision.allowed:
            pending.remove(place)
        return self._part_answer(decision, limit, key, plans)

    def _part_answer(self, decision: Decision, limit: Limit, key: str, plans: Sequence[str]) -> Admission | Refusal:
        """The answer of a limit that is decided by itself."""
        answer = self._answer(decision, [(key, plan) for plan in plans], (limit,))
        return answer if limit.block else Admission(_fields_of_pass(answer), decision=unscoped(decision))

    async def _settle(self, charges: Iterable[ResponseCharge], response: Response | None, call: Call) -> None:
        for limit, cost, reservation in charges:
            try:
                if isinstance(reservation, HeldPlaces | AsyncHeldPlaces):
                    await call(reservation.leave)
                    continue
                actual = cost if response is None else limit.actual_cost(response, cost)
                if actual != cost:
                    await call(reservation.settle, actual)
            except PacelineError as error:
                log.warning("the charge of a response stays at %d, as reserved: %s", cost, error)
            except Exception:
                log.exception("the charge of a response stays at %d, as reserved: its function raised", cost)

    async def give_back(self, pending: Sequence[ResponseCharge], call: Call) -> None:
        """Refunds the charges of a request that is refused or was cancelled."""
        if pending and call is call_directly:
            await self._cancel(pending, call)
        elif pending:
            await self._finish(self._cancel(pending, call))

    async def _cancel(self, pending: Sequence[ResponseCharge], call: Call) -> None:
        for charge in pending:
            try:
                await call(charge.reservation.cancel)
            except PacelineError as error:
                log.warning("a reservation of %d could not be given back, it stays spent: %s", charge.cost, error)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits work that continues if its caller is cancelled."""
        if self._limiter.in_process:
            await work  # it never waits
            return
        await asyncio.wait((self._start(work),))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _call_limiter(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._is_async:
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options) if self._waits else method(*args, **options)

    async def concurrency_limits(self, key: str, plans: Iterable[str]) -> list[str]:
        """The concurrency limits among the plans of a request."""
        if isinstance(self._limiter, AsyncLimiter):
            await self._limiter.load_plans()
        return self._limiter.concurrency_limits(key, plans)

    async def _may_hold_places(self, limit: Limit) -> bool:
        if isinstance(self._limiter, AsyncLimiter):
            await self._limiter.load_plans()
        return not self._limiter.concurrency_plans.isdisjoint(limit.plans)

    def _exempt(self, limit: Limit) -> Admission:
        self._limiter.record_exempt(limit.label)
        return NOT_LIMITED

    def _answer(
        self, decision: Decision, links: Collection[tuple[str, str]], limits: Sequence[Limit] = ()
    ) -> Admission | Refusal:
        try:
            rules = [(key, rule) for key, plan in links for rule in self._limiter.rules(plan, key)]
        except NotFound:
            rules = []  # the plan was deleted after the decision
        fields = self._fields(decision, rules)
        if not self._legacy_headers and any(limit.legacy_headers for limit in limits):
            fields += headers.legacy_fields(decision, time.time())
        if decision.allowed:
            return Admission(fields)
        # Plans chosen by a function are not known here, so limits with such a function count too.
        deniers = [limit for limit in limits if decision.plan in limit.plans or limit.choose_plans is not None]
        own = next((limit.on_denied for limit in deniers if limit.on_denied is not None), self.on_denied)
        return denial(decision, fields)._replace(on_denied=own)

    def refusal_of(self, error: RateLimitExceeded) -> Refusal:
        """The refusal for a denial that the application raised: `limiter.check(...)`."""
        return denial(error.decision, self._fields(error.decision, error.charged))._replace(on_denied=self.on_denied)

    def _fields(self, decision: Decision, rules: Sequence[tuple[str, Rule]]) -> Fields:
        keys = [key for key, _ in rules] if self._partition_keys and rules else None
        fields = headers.fields(decision, [rule for _, rule in rules], keys)
        return [*fields, *headers.legacy_fields(decision, time.time())] if self._legacy_headers else fields


def _fields_of_pass(answer: Admission | Refusal) -> list[tuple[str, str]]:
    """The fields of a request that passes, also over a limit that does not block: without `Retry-After`."""
    if isinstance(answer, Admission):
        return list(answer.fields)
    return [(name, value) for name, value in answer.limit_fields if name.lower() != "retry-after"]


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits for an event loop.

    Raises:
        ConfigurationError: it waited for one.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    work.close()
    raise ConfigurationError("limit", "its function is async, which works in async apps only")


async def call_directly(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A `Call` of a method that is not async."""
    return method(*args, **options)


def chain(charges: Charges) -> list[tuple[str, str, int]]:
    """Charges in the limiter's format."""
    return [(key, plan, cost) for (key, plan), cost in charges.items()]


def denial(decision: Decision, fields: Sequence[tuple[str, str]]) -> Refusal:
    """429, with the decision's fields."""
    return _refusal(429, fields, headers.problem(decision))._replace(decision=unscoped(decision))


def unscoped(decision: Decision) -> Decision:
    """A decision with the names of rates as the application wrote them, without the scope of their route."""
    if not any(SCOPE in state.plan for state in decision.states):
        return decision
    chain = tuple(state._replace(plan=without_scope(state.plan)) for state in decision.chain)
    return decision.but(plan=without_scope(decision.plan), chain=chain)


def error_refusal(error: InvalidInput | StoreUnavailable) -> Refusal:
    """400 for a request that can't be decided, 503 if the plans were never loaded. The application's mistakes are
    raised again, including a cost above a plan's capacity and plans that can't be used. A function that reads the cost
    from the request raises `InvalidInput` itself for a wrong number."""
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, CostExceedsCapacity):
        raise cost_error(error.problem) from error
    if isinstance(error, InvalidInput) and error.field == "plans":
        raise plans_error(error.problem) from error
    if isinstance(error, StoreUnavailable):
        detail = "the limits can't be read just now; try again"
        unavailable = {"type": headers.REDUCED_CAPACITY, "title": "Service Unavailable", "status": 503}
        return _refusal(503, [(headers.RETRY_AFTER, "1")], unavailable | {"detail": detail})
    body = {
        "type": "about:blank",
        "title": "Missing/Invalid Arguments",
        "status": 400,
        "detail": str(error),
        "field": error.field,
    }
    return _refusal(400, [], body)


def _refusal(status: int, fields: Sequence[tuple[str, str]], body: dict[str, Any]) -> Refusal:
    return Refusal(status, [*fields, ("Content-Type", headers.PROBLEM_JSON)], json.dumps(body).encode())
