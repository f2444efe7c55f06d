"""The request limiter that every web integration shares: the limits of a request, the decision, the HTTP response.

An integration turns its framework's request into a `RequestSource` and calls `admit` (or `admit_async`). It sends the
`Refusal` that it gets, or adds the fields that it gets to the response.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from fnmatch import translate
from itertools import combinations
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
    """Plans, the key they hold for, and what a request costs: a number, or a function of the framework's request."""

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
        cost = self.cost if isinstance(self.cost, int) else _check_cost(self.cost(request.native))
        for plan in self.plans:
            link = (key, plan)
            charges[link] = max(cost, charges[link]) if link in charges else cost


def _check_cost(cost: object) -> int:
    """The result of a cost function, if it is a whole number of at least 1."""
    if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
        raise cost_error(f"the cost function gave {cost!r}, which is not a whole number of at least 1")
    return cost


def cost_error(problem: str) -> ConfigurationError:
    """The error of a cost that the application got wrong: no client could send a better request. It is logged."""
    log.error("a limit's cost is wrong: %s", problem)
    return ConfigurationError("cost", problem)


_WILDCARD = re.compile(r"[*?[]")


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

    def is_covered_by(self, other: PathRule) -> bool:
        """Whether `other` certainly applies to every request that this rule applies to."""
        if other.methods is not None and (self.methods is None or not self.methods <= other.methods):
            return False
        if other.pattern in (self.pattern, "*"):
            return True
        return not _WILDCARD.search(self.pattern) and other._matches(self.pattern) is not None

    def __repr__(self) -> str:
        methods = "" if self.methods is None else f", methods={sorted(self.methods)}"
        return f"PathRule({self.pattern!r}, {', '.join(self.limit.plans)!r}{methods})"


Fields: TypeAlias = list[tuple[str, str]]
"""Response fields, by name."""


class Refusal(NamedTuple):
    """The response of a request that was refused."""

    status: int
    fields: Fields
    body: bytes


class RequestLimiter:
    """Decides requests by a limiter.

    In an event loop a `Limiter` is called in a thread, unless its store is this process's memory: the loop is never
    blocked. A request without its key is refused with 400. A cost that no plan can charge is the application's mistake,
    also when a function made it: it is logged and raised. While the store is unavailable the plans' `on_error` decides.
    """

    def __init__(self, limiter: Limiter | AsyncLimiter, *, partition_keys: bool = False) -> None:
        if not isinstance(limiter, Limiter | AsyncLimiter):
            raise ConfigurationError("limiter", f"{limiter!r} is neither a Limiter nor an AsyncLimiter")
        self._limiter = limiter
        self._is_async = isinstance(limiter, AsyncLimiter)
        self._waits = not isinstance(limiter, Limiter) or not limiter.in_process
        self._never_waits = self._is_async or not self._waits
        """Whether `limiter.fast_paths` never blocks an event loop. With leases, a `Limiter`'s waits for the thread that
        refills one."""
        self._partition_keys = partition_keys

    def require(self, limits: Iterable[Limit]) -> None:
        """Refuses limits by plans that the limiter does not have, before the first request."""
        for limit in limits:
            self._limiter.require(limit.plans)

    def require_chain(self, limits: Sequence[Limit]) -> None:
        """Refuses limits that are always one decision, and whose keys the limiter's store can never decide at once."""
        self._limiter.require((), [limit.key.starts() for limit in limits])

    def require_rules(self, rules: Sequence[PathRule]) -> None:
        """Refuses rules that can't be decided: by unknown plans, or together with another rule that always applies."""
        self.require(rule.limit for rule in rules)
        for first, second in combinations(rules, 2):
            if first.is_covered_by(second) or second.is_covered_by(first):
                self.require_chain((first.limit, second.limit))

    def admit(self, limits: Sequence[Limit], request: RequestSource) -> Fields | Refusal:
        """Decides a request, blocking."""
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
            return error_refusal(error)

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
            return self._answer(await self._call_limiter(self._limiter.acquire_chain, chain(charges)), charges)
        except (InvalidInput, StoreUnavailable) as error:
            return error_refusal(error)

    async def _admit_plain(self, limit: Limit, key: str | Awaitable[str | None] | None) -> Fields | Refusal:
        """The common case: one plan at one cost."""
        try:
            if key is not None and not isinstance(key, str):
                key = await key
            if key is None:
                return []
            decision = await self._call_limiter(self._limiter.acquire, key, limit.plans, limit.cost)
            return self._answer(decision, [(key, limit.plans[0])])
        except (InvalidInput, StoreUnavailable) as error:
            return error_refusal(error)

    async def _call_limiter(self, method: Callable[..., Any], *args: Any) -> Any:
        if self._is_async:
            return await method(*args)
        return await asyncio.to_thread(method, *args) if self._waits else method(*args)

    def _answer(self, decision: Decision, links: Collection[tuple[str, str]]) -> Fields | Refusal:
        try:
            rules = [(key, rule) for key, plan in links for rule in self._limiter.rules(plan, key)]
        except NotFound:
            rules = []  # the plan was deleted since it decided
        keys = [key for key, _ in rules] if self._partition_keys and rules else None
        fields = headers.fields(decision, [rule for _, rule in rules], keys)
        return fields if decision.allowed else denial(decision, fields)


def chain(charges: Charges) -> list[tuple[str, str, int]]:
    """Charges as a limiter takes them."""
    return [(key, plan, cost) for (key, plan), cost in charges.items()]


def denial(decision: Decision, fields: Sequence[tuple[str, str]] | None = None) -> Refusal:
    """429, with the decision's fields, or at least `Retry-After` if they are not known."""
    known_fields = headers.fields(decision, []) if fields is None else fields
    return _refusal(429, known_fields, headers.problem(decision))


def error_refusal(error: InvalidInput | StoreUnavailable) -> Refusal:
    """400 for a request that can't be decided, 503 if the plans were never loaded. Mistakes of the application are
    raised again, also a cost above a plan's capacity. A cost function that takes the cost from the request raises
    `InvalidInput` itself if the client's number is wrong."""
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, CostExceedsCapacity):
        raise cost_error(error.problem) from error
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
