"""Values of a wrong type or size are errors of paceline that name the field and what to write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from paceline import ConfigurationError, InvalidInput, Limiter, Plan, SlotScheduler, TokenBucket, WindowPolicy

HUGE = 10**5000
"""Larger than any float, and with more digits than Python prints."""
AT = "2030-03-01T16:00:00Z"


@pytest.mark.parametrize(
    ("make", "field", "fix"),
    [
        (lambda: TokenBucket(10, HUGE), "per_second", "use at most"),
        (lambda: TokenBucket(10, Fraction(HUGE)), "per_second", "use at most"),
        (lambda: TokenBucket(10, Decimal("1e400")), "per_second", "finite"),
        (lambda: TokenBucket(HUGE, 10), "capacity", "use at most"),
        (lambda: Plan("x", "1/day", overrides=[("k", "2/day")]), "overrides", "{key: limit}"),  # type: ignore[arg-type]
        (lambda: WindowPolicy(1, "PT1S", calendar="US"), "calendar", '{"zone": '),  # type: ignore[arg-type]
    ],
)
def test_of_plans_and_policies(make: Callable[[], object], field: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field
    assert fix in caught.value.problem


@pytest.mark.parametrize("link", [("k", "p"), ("k", "p", 1, 2), "kp1", None])
def test_of_links(link: Any) -> None:
    limiter = Limiter(plans=[Plan("p", "1/day")])
    with pytest.raises(InvalidInput) as caught:
        limiter.acquire_chain([("k", "p", 1), link])
    assert (caught.value.field, caught.value.problem) == ("links[1]", "give (key, plan, cost)")
    assert limiter.peek("k", "p").allowed, "nothing was charged"


@pytest.mark.parametrize(
    ("call", "field", "fix"),
    [
        (lambda slots: slots.configure("d", {"max_per_window": 5}), "policy", "write WindowPolicy("),
        (lambda slots: slots.ensure("d", {"max_per_window": 5}), "policy", "write WindowPolicy("),
        (lambda slots: slots.change("d", {"maxPerWindow": 5}), "maxPerWindow", "use max_per_window, window,"),
        (lambda slots: slots.change("new", {"maxPerWindow": 5}), "maxPerWindow", "use max_per_window, window,"),
        (lambda slots: slots.change("d", [("window", "PT1S")]), "changes", "fields and their values"),
        (lambda slots: slots.assign_many([("a", AT), ("b",)], "d"), "events[1]", "give (event_id, requested_time)"),
        (lambda slots: slots.assign_many(["ab"], "d"), "events[0]", "give (event_id, requested_time)"),
        (lambda slots: slots.cancel("a", reason=5), "reason", "must be a text"),
        (lambda slots: slots.cancel("a", actor=5), "actor", "must be a text"),
    ],
)
async def test_of_slots(call: Callable[[Any], Awaitable[object]], field: str, fix: str) -> None:
    async with SlotScheduler.open("sqlite://") as slots:
        await slots.configure("d", WindowPolicy(1, "PT1S"))
        with pytest.raises(InvalidInput) as caught:
            await call(slots)
        assert caught.value.field == field
        assert fix in caught.value.problem
        assert [version.version for version in await slots.configs()] == [1], "nothing was changed"
