"""What every web integration shares: which limits hold for a request, asking the limiter, answering as HTTP.

An integration turns its framework's request into a `RequestSource`, asks `admit` (or `admit_async`), sends a
`Refusal` if it gets one, and else adds the fields it gets to the response.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from fnmatch import translate
from typing import Any, NamedTuple, TypeAlias

from headgate.errors import ConfigurationError, CostExceedsCapacity, InvalidInput, NotFound, StoreUnavailable
from headgate.limits import headers
from headgate.limits._blocking import Limiter
from headgate.limits.keys import Key, KeyFunction, RequestSource, key_from
from headgate.limits.limiter import AsyncLimiter
from headgate.limits.model import Decision

log = logging.getLogger("headgate.integrations")

Cost: TypeAlias = int | Callable[[Any], int]
Charges: TypeAlias = dict[tuple[str, str], int]
"""Costs by key and plan."""


class Limit:
    """Plans that hold for a key, and what a request costs: a number, or a function of the framework's request."""

    __slots__ = ("cost", "is_plain", "is_single", "key", "plans")

    def __init__(self, plans: str | Iterable[str], *, key: Key | KeyFunction, cost: Cost = 1) -> None:
        self.plans = (plans,) if isinstance(plans, str) else tuple(plans)
        if not self.plans:
            raise ConfigurationError("plans", "name at least one plan")
        self.key = key_from(key)
        if not callable(cost) and (not isinstance(cost, int) or isinstance(cost, bool) or cost < 1):
            raise ConfigurationError("cost", f"{cost!r} is not a whole number of at least 1, nor a function")
        self.cost = cost
        self.is_plain = len(self.plans) == 1 and not callable(cost)
        """Whether it is one plan at one cost."""
        self.is_single = self.is_plain and cost == 1

    def charge(self, charges: Charges, key: str, request: RequestSource) -> None:
        """Adds what `key` is charged. A plan that several limits hold on one key is charged once, the highest cost."""
        cost = self.cost if isinstance(self.cost, int) else _checked(self.cost(request.native))
        for plan in self.plans:
            link = (key, plan)
            charges[link] = max(cost, charges[link]) if link in charges else cost


def _checked(cost: object) -> int:
    """What a function found, if it is a number. One below 1 may be what the client asked for: the limiter refuses."""
    if isinstance(cost, bool) or not isinstance(cost, int):
        raise own_mistake(f"the cost function gave {cost!r}, which is not a whole number")
    return cost


def own_mistake(problem: str) -> ConfigurationError:
    """What to raise for a cost that the application got wrong: no client could send a better request."""
    log.error("a limit's cost is wrong: %s", problem)
    return ConfigurationError("cost", problem)


class PathRule:
    """A `Limit` for the requests whose path matches a pattern (`/api/*`; `*` also spans slashes) and, if given, whose
    method is one of `methods`; HEAD counts as GET.

    The path is relative to the application: without the prefix that it is mounted or served under. One slash at its
    end makes no difference, so nobody passes `/login` by asking for `/login/`.
    """

    __slots__ = ("_matches", "limit", "methods", "pattern")

    def __init__(
        self,
        pattern: str,
        plans: str | Iterable[str],
        *,
        key: Key | KeyFunction,
        cost: Cost = 1,
        methods: Iterable[str] | None = None,
    ) -> None:
        if not pattern.startswith(("/", "*")):
            raise ConfigurationError("pattern", f"{pattern!r} matches no path; begin it with / or *")
        if isinstance(methods, str):
            raise ConfigurationError("methods", f"give a list, as in [{methods!r}]")
        self.pattern = pattern
        self.limit = Limit(plans, key=key, cost=cost)
        self.methods = None if methods is None else frozenset(method.upper() for method in methods)
        bare = pattern.removesuffix("/")
        self._matches = re.compile(f"{translate(bare)}|{translate(bare + '/')}").match

    def applies(self, method: str, path: str) -> bool:
        return self._matches(path) is not None and (
            self.methods is None or ("GET" if method == "HEAD" else method) in self.methods
        )

    def __repr__(self) -> str:
        methods = "" if self.methods is None else f", methods={sorted(self.methods)}"
        return f"PathRule({self.pattern!r}, {', '.join(self.limit.plans)!r}{methods})"


Fields: TypeAlias = list[tuple[str, str]]
"""Response fields, by name."""


class Refusal(NamedTuple):
    """A response instead of the application's."""

    status: int
    fields: Fields
    body: bytes


class Gate:
    """Asks a limiter about requests.

    In an event loop a `Limiter` is asked in a thread, unless its store is this process's memory: the loop is never
    blocked. A request without its key, or that asks for more than a plan ever has, is refused with 400; a store that
    can't be asked is a matter of the plans' `on_error`, never of this gate.
    """

    def __init__(self, limiter: Limiter | AsyncLimiter, *, partition_keys: bool = False) -> None:
        if not isinstance(limiter, Limiter | AsyncLimiter):
            raise ConfigurationError("limiter", f"{limiter!r} is neither a Limiter nor an AsyncLimiter")
        self._limiter = limiter
        self._is_async = isinstance(limiter, AsyncLimiter)
        self._waits = not isinstance(limiter, Limiter) or not limiter.in_process
        self._never_waits = self._is_async or not self._waits
        """Whether `limiter.at_once` never holds up an event loop: that of a `Limiter` with leases waits for the thread
        that fetches one."""
        self._partition_keys = partition_keys

    def require(self, limits: Iterable[Limit]) -> None:
        """Refuses limits by plans that the limiter does not have, before the first request meets them."""
        for limit in limits:
            self._limiter.require(limit.plans)

    def admit(self, limits: Sequence[Limit], request: RequestSource) -> Fields | Refusal:
        """Decides a request where blocking is fine."""
        limiter = self._limiter
        if not isinstance(limiter, Limiter):
            raise ConfigurationError("limiter", "an AsyncLimiter can't be asked outside an event loop; use a Limiter")
        try:
            charges: Charges = {}
            for limit in limits:
                key = None if limit.key.is_async else limit.key(request)
                if limit.key.is_async or not isinstance(key, str | None):
                    raise ConfigurationError("key", f"{limit.key.source} is async, which works in async apps only")
                if key is not None:
                    limit.charge(charges, key, request)
            return self._answer(limiter.acquire_chain(chain(charges)), charges) if charges else []
        except (InvalidInput, StoreUnavailable) as error:
            return refused(error, limits)

    async def admit_async(self, limits: Sequence[Limit], request: RequestSource) -> Fields | Refusal:
        """Decides a request in an event loop."""
        try:
            if len(limits) == 1 and limits[0].is_plain:
                return await self._admit_plain(limits[0], limits[0].key(request))
            charges: Charges = {}
            for limit in limits:
                key = limit.key(request)
                if key is not None and not isinstance(key, str):
                    key = await key
                if key is not None:
                    limit.charge(charges, key, request)
            if not charges:
                return []
            return self._answer(await self._awaited(self._limiter.acquire_chain, chain(charges)), charges)
        except (InvalidInput, StoreUnavailable) as error:
            return refused(error, limits)

    async def _admit_plain(self, limit: Limit, key: str | Awaitable[str | None] | None) -> Fields | Refusal:
        """The common case: one plan at one cost, for a key that was asked for."""
        try:
            if key is not None and not isinstance(key, str):
                key = await key
            if key is None:
                return []
            decision = await self._awaited(self._limiter.acquire, key, limit.plans, limit.cost)
            return self._answer(decision, [(key, limit.plans[0])])
        except (InvalidInput, StoreUnavailable) as error:
            return refused(error, [limit])

    async def _awaited(self, question: Callable[..., Any], *words: Any) -> Any:
        if self._is_async:
            return await question(*words)
        return await asyncio.to_thread(question, *words) if self._waits else question(*words)

    def _answer(self, decision: Decision, links: Collection[tuple[str, str]]) -> Fields | Refusal:
        try:
            rules = [self._limiter.rule(plan, key) for key, plan in links]
        except NotFound:
            rules = []  # the plan was deleted since it decided
        keys = [key for key, _ in links] if self._partition_keys and rules else None
        fields = headers.fields(decision, rules, keys)
        return fields if decision.allowed else denial(decision, fields)


def chain(charges: Charges) -> list[tuple[str, str, int]]:
    """Charges as a limiter takes them."""
    return [(key, plan, cost) for (key, plan), cost in charges.items()]


def denial(decision: Decision, fields: Sequence[tuple[str, str]] | None = None) -> Refusal:
    """429, with the decision's fields, or at least `Retry-After` if they are not known."""
    told = headers.fields(decision, []) if fields is None else fields
    return _refusal(429, told, headers.problem(decision))


def refused(error: InvalidInput | StoreUnavailable, limits: Iterable[Limit] = ()) -> Refusal:
    """400 for a request that can't be decided, 503 if not even the plans could ever be loaded; the application's own
    mistakes are raised again: also a cost above a plan's capacity, unless a function found it in the request."""
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, CostExceedsCapacity) and not any(callable(limit.cost) for limit in limits):
        raise own_mistake(error.problem) from error
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
