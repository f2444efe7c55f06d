"""The plans and keys of some names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.limits.limiter import AsyncLimiter
from paceline.limits.live_plans import LivePlans
from paceline.limits.model import Charge, Decision, Plan
from paceline.limits.plan_book import Request, plan_names
from paceline.limits.ports import AsyncLimitStore
from paceline.limits.rates import is_rate
from paceline.server.access.names import Names
from paceline.server.bound.calls import offer, refuse_others


class BoundLimiter(AsyncLimiter):
    """An `AsyncLimiter` for keys and plans of some names. A rate, such as `10/minute`, is a plan of nobody."""

    def __init__(self, limiter: AsyncLimiter, names: Names) -> None:
        self._original = limiter
        self._names = names

    @property
    def store(self) -> AsyncLimitStore:
        """The store of all: `check_charges` first."""
        store: AsyncLimitStore = self._original.store
        return store

    @property
    def breaker_state(self) -> str:
        return self._original.breaker_state

    async def acquire(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        self._check(key, plans)
        return await self._original.acquire(key, plans, cost)

    async def acquire_many(self, requests: Iterable[Request], *, return_errors: bool = False) -> Any:
        chosen = [*requests]
        for key, plans, *_ in chosen:
            self._check(key, plans)
        return await self._original.acquire_many(chosen, return_errors=return_errors)  # type: ignore[call-overload]

    async def peek(self, key: str, plans: str | Sequence[str], cost: int = 1) -> Decision:
        self._check(key, plans)
        return await self._original.peek(key, plans, cost)

    async def refund(self, key: str, plans: str | Sequence[str], cost: int = 1) -> None:
        self._check(key, plans)
        await self._original.refund(key, plans, cost)

    async def reset(self, key: str, plans: str | Sequence[str]) -> None:
        self._check(key, plans)
        await self._original.reset(key, plans)

    def rule(self, plan: str, key: str) -> Any:
        self._check(key, plan)
        return self._original.rule(plan, key)

    def rules(self, plan: str, key: str) -> Any:
        self._check(key, plan)
        return self._original.rules(plan, key)

    def _check(self, key: str, plans: str | Sequence[str]) -> None:
        self._names.check(key, *(plan for plan in plan_names(plans) if not is_rate(plan)))


def check_charges(names: Names, charges: Iterable[Charge]) -> None:
    """Raises `OutsideNames` unless the keys and the rules are of these names."""
    for key, rule, _ in charges:
        # One of several limits of a plan: `free;P1D`.
        counter = rule.plan if names.allow(rule.plan) else rule.plan.rpartition(";")[0] or rule.plan
        names.check(key, *(name for name in (rule.owner, counter) if not is_rate(name)))


class BoundPlans(LivePlans):
    """`LivePlans` of some names."""

    def __init__(self, plans: LivePlans, names: Names) -> None:
        self._original = plans
        self._names = names

    async def all(self) -> Mapping[str, Plan]:
        return {name: plan for name, plan in (await self._original.all()).items() if self._names.allow(name)}

    async def put(self, plan: Plan) -> None:
        self._names.check(plan.name, *(() if plan.counter is None else (plan.counter,)))
        await self._original.put(plan)

    async def refresh(self) -> None:
        await self._original.refresh()


offer(BoundPlans, LivePlans, "name", lambda plans, name: plans._names.check(name), ["find", "delete"])
refuse_others(BoundPlans, LivePlans)
