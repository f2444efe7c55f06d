"""The fast path of the commonest decision: one unit, one plan, decided in this process.

A store in memory has a fast path per rule, and so have local leases. It returns `None`, and charges nothing, when
the slow path must be taken: an unknown key, a denial, plans that are due for a refresh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from paceline.clock import Clock
from paceline.limits.local_lease import LocalLeases
from paceline.limits.model import Charge, Decision
from paceline.limits.plan_book import PlanBook, Request
from paceline.limits.ports import AdmissionObserver

ONE = 1
FastPath: TypeAlias = Callable[[str], Decision | None]


def fast_paths(book: PlanBook, store: Any, leases: LocalLeases | None, clock: Clock) -> dict[str, FastPath]:
    """Fast paths by plan. They report to no observer."""
    paths: dict[str, FastPath] = {}
    # Not of every rate string: its uses are not counted here, and so it would be evicted while it is in use.
    pinned = {rate: rules for rate, rules in book.inline.copy().items() if rate in book.pinned}
    for name, rules in (pinned | book.rules).items():
        rule = rules[0]
        if name in book.exceptions or len(rules) > 1 or rule.shadow:
            continue
        path: FastPath | None = None
        if leases is not None:
            path = leases.fast_path(rule, clock) if leases.is_leasable([Charge("", rule)]) else None
        elif (of_rule := getattr(store, "fast_path", None)) is not None:
            path = of_rule(rule)
        if path is not None:
            paths[name] = path
    return paths


def observed(
    paths: dict[str, FastPath],
    clock: Clock,
    observer: AdmissionObserver | None,
    due_us: Callable[[], int | None] | None,
) -> dict[str, FastPath]:
    """Fast paths that report to the observer. `due_us` returns when plans must be refreshed, if they come from a
    registry."""
    if observer is None and due_us is None:
        return paths
    return {name: _observed(path, clock, observer, due_us) for name, path in paths.items()}


def decide_first(paths: dict[str, FastPath], requests: Sequence[Request]) -> list[Decision]:
    """The decisions of the first requests of a batch, up to the first that needs the slow path. Later ones must wait:
    they may have the same key."""
    decisions: list[Decision] = []
    try:
        for key, plans, cost in requests:  # type: ignore[misc]
            if cost is not ONE or plans.__class__ is not list:
                break
            (plan,) = plans
            decision = paths[plan](key)
            if decision is None:
                break
            decisions.append(decision)
    except (KeyError, TypeError, ValueError):
        pass  # the slow path raises the error
    return decisions


def _observed(
    path: FastPath, clock: Clock, observer: AdmissionObserver | None, due_us: Callable[[], int | None] | None
) -> FastPath:
    def spend_and_observe(key: str) -> Decision | None:
        due = None if due_us is None else due_us()
        if due is not None and clock.monotonic_us() >= due:
            return None
        decision = path(key)
        if decision is not None and observer is not None:
            observer.decided(decision)
        return decision

    return spend_and_observe
