"""The short way to the commonest decision: one unit, one plan, decided in this process.

A store in this process has one for each rule (`spender`), and so has a purse of leased tokens. It answers `None` when
the long way must be taken: a key it does not know, a denial, plans that should be looked at first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from headgate.clock import Clock
from headgate.limits.local_lease import Purses
from headgate.limits.model import Charge, Decision
from headgate.limits.plan_book import PlanBook
from headgate.limits.ports import AdmissionObserver

ShortWay: TypeAlias = Callable[[str], Decision | None]


def short_ways(
    book: PlanBook,
    store: Any,
    purses: Purses | None,
    clock: Clock,
    observer: AdmissionObserver | None,
    due_us: Callable[[], int | None] | None,
) -> dict[str, ShortWay]:
    """Short ways by plan. `due_us` tells when plans must be looked at, if they come from a registry."""
    ways: dict[str, ShortWay] = {}
    for name, rule in book.rules.items():
        if name in book.exceptions or rule.shadow:
            continue
        way: ShortWay | None = None
        if purses is not None:
            way = purses.spender(rule, clock) if purses.suits([Charge("", rule)]) else None
        elif getattr(store, "in_process", False):
            way = store.spender(rule)
        if way is not None:
            ways[name] = way if observer is None and due_us is None else _watched(way, clock, observer, due_us)
    return ways


def _watched(
    way: ShortWay, clock: Clock, observer: AdmissionObserver | None, due_us: Callable[[], int | None] | None
) -> ShortWay:
    def spend_and_tell(key: str) -> Decision | None:
        due = None if due_us is None else due_us()
        if due is not None and clock.monotonic_us() >= due:
            return None
        decision = way(key)
        if decision is not None and observer is not None:
            observer.decided(decision)
        return decision

    return spend_and_tell
