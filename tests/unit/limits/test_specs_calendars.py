"""Calendar windows and paced calls: midnights of a zone, daylight saving time, spacing, documents, headers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import AsyncLimiter, FixedWindow, Gcra, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.errors import ConfigurationError
from paceline.limits import algorithms, headers
from paceline.limits.local_lease import LocalLeases
from paceline.limits.model import CalendarWindow, Charge, Rule
from paceline.limits.plan_documents import document_of, plan_from
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600_000_000


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_a_new_day_begins_at_midnight_of_the_zone(kind: Any) -> None:
    clock = FakeClock(datetime(2027, 3, 28, 21, 59, tzinfo=UTC))  # 23:59 in Berlin
    store: Any = MemoryLimitStore(clock=clock)
    daily = FixedWindow(2, calendar="day", zone="Europe/Berlin")
    plans = [Plan("daily", daily), Plan("gold", TokenBucket(100, 1))]
    limiter = kind(AsyncMemoryLimitStore(store) if kind is AsyncLimiter else store, plans=plans, clock=clock)

    async def call(name: str, *args: Any) -> Any:
        result = getattr(limiter, name)(*args)
        return await result if kind is AsyncLimiter else result

    assert [(await call("acquire", "u", ["daily", "gold"])).allowed for _ in range(3)] == [True, True, False]
    denied = await call("acquire", "u", "daily")
    assert denied.retry_after == 60
    clock.advance(60)
    assert (await call("acquire", "u", "daily")).remaining == 1
    await call("refund", "u", "daily")
    assert (await call("peek", "u", "daily")).remaining == 2
    reservation = await call("reserve", "u", "daily", 2)
    assert not (await call("peek", "u", "daily")).allowed
    cancelled = reservation.cancel()
    assert await cancelled if kind is AsyncLimiter else cancelled
    assert (await call("peek", "u", "daily")).remaining == 2


def test_a_host_clock_that_is_set_back_grants_nothing() -> None:
    spec = CalendarWindow(2, "day", "UTC")
    noon = us(datetime(2027, 3, 2, 12, tzinfo=UTC))
    state = algorithms.take(spec, algorithms.at(spec, None, noon), noon, 2)
    for back_hours in (1, 13, 30):
        view = algorithms.at(spec, state, noon - back_hours * HOUR)
        assert algorithms.room(spec, view, noon - back_hours * HOUR, 1).remaining == 0
    far = noon - 10 * 24 * HOUR
    assert algorithms.stranded(spec, state, far)
    assert algorithms.room(spec, algorithms.at(spec, state, far), far, 1) == (0, 12 * HOUR, 12 * HOUR)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"calendar": "year"}, "calendar"),
        ({"calendar": "day", "window": "P1D"}, "calendar"),
        ({"calendar": "day", "zone": "Berlin"}, "zone"),
        ({"calendar": "day", "zone": ""}, "zone"),
        ({"calendar": "day", "zone": "../etc/passwd"}, "zone"),
        ({"window": "P1D", "zone": "UTC"}, "zone"),
        ({}, "window"),
    ],
)
def test_what_is_no_calendar_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FixedWindow(5, **options)
    assert caught.value.field == field


@given(st.integers(1, 1000), st.integers(1, 5), st.lists(st.integers(0, 3_000_000), max_size=60))
def test_paced_calls_keep_their_distance(rate: int, burst: int, gaps: list[int]) -> None:
    spec = Gcra(f"{rate}/second", burst)
    now, state, admitted = 10**15, None, []
    for gap in gaps:
        now += gap
        view = algorithms.at(spec, state, now)
        if algorithms.room(spec, view, now, 1).retry_after_us == 0:
            state = algorithms.take(spec, view, now, 1)
            admitted.append(now)
    for first, later in zip(admitted, admitted[burst:], strict=False):
        # `burst` calls after one another take at least that many spaces, to the microsecond.
        assert (later - first) * rate >= 1_000_000 - rate


@pytest.mark.parametrize(
    ("rate", "burst", "field"), [("10", 1, "rate"), ("10/second burst 2", 1, "rate"), ("1/s", 0, "burst")]
)
def test_what_is_no_pace_is_refused(rate: str, burst: int, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Gcra(rate, burst)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("spec", "document", "policy"),
    [
        (Gcra("10/second"), {"algorithm": "gcra", "rate": "10/second", "burst": 1}, '"p";q=10;w=1'),
        (Gcra("100/minute", 5), {"algorithm": "gcra", "rate": "100/minute", "burst": 5}, '"p";q=100;w=60'),
        (
            FixedWindow(9, calendar="month", zone="Asia/Tokyo"),
            {"algorithm": "fixed_window", "limit": 9, "calendar": "month", "zone": "Asia/Tokyo"},
            '"p";q=9;w=2592000',
        ),
    ],
)
def test_documents_and_headers(spec: Any, document: dict[str, Any], policy: str) -> None:
    plan = Plan("p", spec, overrides={"vip": spec})
    assert document_of(plan) == document | {"overrides": {"vip": document}}
    assert plan_from("p", document_of(plan)) == plan
    assert headers.policy_item("p", spec) == policy
    assert not LocalLeases.is_leasable([Charge("k", Rule("p", spec))])


def test_a_rate_of_a_key_is_a_window_whatever_its_plan_is() -> None:
    plan = plan_from("p", {"algorithm": "gcra", "rate": "1/hour", "overrides": {"a": "7/day", "b": {"rate": "2/hour"}}})
    assert dict(plan.overrides) == {"a": (FixedWindow(7, "P1D"),), "b": (Gcra("2/hour"),)}


def test_leases_leave_calendars_and_pace_to_the_store() -> None:
    limiter = Limiter(plans=[Plan("paced", Gcra("10/second"))], lease=LeasePolicy())
    assert [limiter.acquire("u", "paced").allowed for _ in range(2)] == [True, False]
