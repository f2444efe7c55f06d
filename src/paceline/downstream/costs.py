"""What calls cost: the limits that they are charged to, and the debts of those that cost more than they reserved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from paceline.errors import ConfigurationError
from paceline.limits.model import Concurrency, FixedWindow, Plan, SlidingLog, Spec
from paceline.limits.reservations import Link
from paceline.limits.specs import MOST_LOGGED

ENTRIES = 128
"""The most that a limit remembers of its window: room comes a hundredth of it later, and a call costs the same at any
rate."""


class Budget(NamedTuple):
    """A limit as it is charged: its plan, and how much of a cost is one of the plan's units."""

    limit: str
    plan: Plan
    unit: int
    capacity: int
    """The largest cost, in units, that it can admit."""
    is_places: bool
    """Whether it limits what is open at once."""
    life: float
    """Seconds for which a cost counts."""

    @classmethod
    def of(cls, limit: str, plan: Plan, unit: int = 1) -> Budget:
        """That of a plan."""
        is_places = isinstance(plan.specs[0], Concurrency)
        life = max(spec.life_us for spec in plan.specs) / 1e6
        return cls(limit, plan, unit, min(spec.size for spec in plan.specs), is_places, life)

    def units(self, cost: int) -> int:
        """A cost in units, rounded up."""
        return -(-cost // self.unit)


def budget_of(downstream: str, limit: str, given: str | Spec) -> Budget:
    """The budget of a limit. A rate holds in every sliding window, wherever the other side's window begins: each call
    is remembered for so long. Of a high one, such as tokens per minute, costs are counted in some tokens each.

    Raises:
        ConfigurationError: it is no rate and no algorithm; names the limit.
    """
    name = f"{downstream}:{limit}"
    try:
        plan = Plan(name, given)
    except ConfigurationError as error:
        raise ConfigurationError(f"limits.{limit}", error.problem) from None
    if not isinstance(given, str):
        return Budget.of(limit, plan)
    unit = max(-(-spec.size // MOST_LOGGED) for spec in plan.specs)
    return Budget.of(limit, Plan(name, tuple(_sliding(spec, unit) for spec in plan.specs)), unit)


def _sliding(spec: Spec, unit: int) -> Spec:
    if not isinstance(spec, FixedWindow):
        return spec
    limit = max(1, spec.limit // unit)
    if limit <= ENTRIES:
        return SlidingLog(limit, spec.window)
    return SlidingLog(limit, spec.window, max(spec.window // ENTRIES, timedelta(microseconds=1)))


class Debts:
    """What calls of this process have cost beyond what they reserved, and no limit had room for: the next ones pay it.

    A store takes no more than its limit, so a rest would be forgotten, and with estimates that are too low, calls would
    leave too fast for ever.
    """

    def __init__(self, capacities: Mapping[str, int]) -> None:
        self._capacities = capacities
        self._debts: dict[tuple[str, str], int] = {}

    def add(self, key: str, plan: str, cost: int) -> None:
        """Adds a debt."""
        if cost:
            self._debts[key, plan] = self._debts.get((key, plan), 0) + cost

    def claim(self, links: Sequence[Link]) -> dict[str, int]:
        """By plan, what a call is to pay beyond its own costs, 0 included. It is no debt any more: `add` it again if
        the call is not made."""
        claimed = {}
        for key, plan, cost in links:
            debt = self._debts.pop((key, plan), 0)
            claimed[plan] = max(min(debt, self._capacities[plan] - cost), 0)
            if debt > claimed[plan]:
                self._debts[key, plan] = debt - claimed[plan]
        return claimed
