"""The limit of a window by time of day and weekday."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.durations import to_ms
from paceline.errors import ConfigurationError
from paceline.slots.calendars import DAYS
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy, changed_policy
from paceline.slots.stores.policies import policy_from_json
from tests.effort import examples
from tests.models.slot_store import MemorySlotStore
from tests.unit.slots.forecast.test_forecast import forecast_of

BY_DAY = [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "08:00", "to": "18:00", "max": 40}]
MONDAY = datetime(2027, 3, 1, tzinfo=UTC)


def at(hours: float, day: datetime = MONDAY) -> int:
    return to_ms(day + timedelta(hours=hours))


def test_hours_of_the_day_and_the_week() -> None:
    policy = WindowPolicy(100, "PT1M", curve=BY_DAY)
    assert [policy.limit_at(at(hours)) for hours in (0, 7.98, 8, 12, 17.98, 18, 23)] == [100, 100, 40, 40, 40, 100, 100]
    saturday = MONDAY + timedelta(days=5)
    assert policy.limit_at(at(12, saturday)) == 100
    assert policy.lowest_limit == 40


def test_the_clock_is_that_of_the_calendars_zone() -> None:
    policy = WindowPolicy(100, "PT1M", calendar={"zone": "America/New_York"}, curve=BY_DAY)
    assert [policy.limit_at(at(hours)) for hours in (12.98, 13, 22.98, 23)] == [100, 40, 40, 100]
    moved = changed_policy(policy, {"calendar": None})
    assert [moved.limit_at(at(hours)) for hours in (12.98, 13, 22.98)] == [40, 40, 100]


def test_a_window_that_touches_an_entry_has_its_limit() -> None:
    policy = WindowPolicy(100, "PT3H", curve=BY_DAY)
    assert [policy.limit_at(at(hours)) for hours in (3, 6, 9, 15, 18)] == [100, 40, 40, 40, 100]


def test_where_several_hold_the_lowest_counts() -> None:
    curve = [{"from": "08:00", "to": "18:00", "max": 40}, {"from": "12:00", "to": "13:00", "max": 5}]
    policy = WindowPolicy(10, "PT1M", curve=curve)
    assert [policy.limit_at(at(hours)) for hours in (7, 9, 12.5, 14)] == [10, 40, 5, 40]


def test_a_night_belongs_to_the_day_it_begins_on() -> None:
    policy = WindowPolicy(10, "PT1M", curve=[{"days": ["MON"], "from": "22:00", "to": "06:00", "max": 99}])
    assert [policy.limit_at(at(hours)) for hours in (5, 22, 25, 29.9, 30, 46)] == [10, 99, 99, 99, 10, 10]


def test_it_survives_storage_and_changes_of_other_members() -> None:
    policy = WindowPolicy(100, "PT4S", curve=BY_DAY)
    assert policy.to_json()["curve"] == BY_DAY
    assert policy_from_json(json.dumps(policy.to_json())) == policy
    assert changed_policy(policy, {"max_per_window": 7}).curve == policy.curve
    assert changed_policy(policy, {"curve": None}) == WindowPolicy(100, "PT4S") == WindowPolicy(100, "PT4S", curve=[])
    assert WindowPolicy(100, "PT4S").to_json()["curve"] is None


@pytest.mark.parametrize(
    ("curve", "field"),
    [
        ({}, "curve"),
        ("08:00", "curve"),
        ([{}] * 101, "curve"),
        ([7], "curve[0]"),
        ([{"from": "08:00"}], "curve[0].max"),
        ([{"max": 0}], "curve[0].max"),
        ([{"max": True}], "curve[0].max"),
        ([{"max": 1.5}], "curve[0].max"),
        ([{"max": 2**31}], "curve[0].max"),
        ([{"max": 5, "from": "25:00"}], "curve[0].from"),
        ([{"max": 5}, {"max": 5, "days": ["Monday"]}], "curve[1].days"),
        ([{"max": 5, "until": "09:00"}], "curve[0].until"),
        ([{"max": 5, "from": "09:00", "to": "09:00"}], "curve[0].to"),
    ],
)
def test_what_is_wrong_is_named(curve: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        WindowPolicy(100, "PT4S", curve=curve)
    assert refusal.value.field == field


# -- properties --------------------------------------------------------------------------------------------------------

clocks = st.integers(0, 95).map(lambda quarter: f"{quarter // 4:02d}:{quarter % 4 * 15:02d}")
entries = st.fixed_dictionaries(
    {"from": clocks, "to": clocks, "max": st.integers(1, 9)},
    optional={"days": st.lists(st.sampled_from(DAYS), min_size=1, unique=True)},
).filter(lambda entry: entry["from"] != entry["to"])
curves = st.lists(entries, min_size=1, max_size=3)
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe")
CHANGES = (datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 31, tzinfo=UTC), datetime(2027, 4, 3, tzinfo=UTC))
"""Days on which clocks are changed."""


def holds(entry: dict[str, Any], moment: datetime) -> bool:
    """Whether an entry holds at a local time, by comparing texts."""
    clock, days = f"{moment:%H:%M}", entry.get("days", DAYS)
    today, yesterday = DAYS[moment.weekday()], DAYS[moment.weekday() - 1]
    if entry["from"] < entry["to"]:
        return today in days and entry["from"] <= clock < entry["to"]
    return (today in days and entry["from"] <= clock) or (yesterday in days and clock < entry["to"])


def naive_limit(curve: list[dict[str, Any]], zone: str, otherwise: int, start_ms: int, size_ms: int) -> int:
    """By looking at every quarter of an hour, when alone something may change."""
    moments = range(start_ms, start_ms + size_ms, 900_000)
    local = [datetime.fromtimestamp(moment / 1000, ZoneInfo(zone)) for moment in moments]
    limits = [entry["max"] for entry in curve if any(holds(entry, moment) for moment in local)]
    return min(limits, default=otherwise)


@settings(max_examples=examples(300), deadline=None)
@given(
    curve=curves,
    zone=st.sampled_from(ZONES),
    size=st.sampled_from(["PT15M", "PT1H", "PT7H", "P2D"]),
    day=st.sampled_from(CHANGES),
    hours=st.integers(-40, 60),
)
def test_a_windows_limit_is_that_of_all_its_instants(
    curve: list[dict[str, Any]], zone: str, size: str, day: datetime, hours: int
) -> None:
    policy = WindowPolicy(5, size, calendar={"zone": zone}, curve=curve)
    start = at(hours, day) // policy.size_ms * policy.size_ms
    assert policy.limit_at(start) == naive_limit(curve, zone, 5, start, policy.size_ms)
    assert policy.limit_at(start) >= policy.lowest_limit
    assert policy.curve_limits is not None
    until = policy.curve_limits.alike_until(start)
    assert until > start
    alike = range(start, until - policy.size_ms + 1, policy.size_ms)
    assert {policy.limit_at(window) for window in alike} <= {policy.limit_at(start)}


SECONDS = [{"from": "01:21:00", "to": "01:21:09", "max": 1}, {"from": "01:21:30", "to": "01:22:02", "max": 9}]
NOW = 1_803_000_000_000
AT = NOW + 60_000
"""01:21:00."""


@settings(max_examples=examples(80), deadline=None)
@given(
    limit=st.integers(1, 7),
    before=st.integers(0, 40),
    events=st.integers(1, 120),
    offset=st.integers(0, 9000),
    delay=st.sampled_from([None, "PT15S", "PT2.5S"]),
)
@example(limit=3, before=0, events=100, offset=0, delay=None)
async def test_a_forecast_is_what_booking_then_does(
    limit: int, before: int, events: int, offset: int, delay: str | None
) -> None:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(limit, "PT4S", max_delay=delay, curve=SECONDS), now_ms=NOW)
    await store.book("c", [SlotRequest(f"old-{n}", AT + n * 500) for n in range(before)], now_ms=NOW)
    said = await forecast_of(store, events, AT + offset)
    bookings = await store.book("c", [SlotRequest(f"new-{n}", AT + offset) for n in range(events)], now_ms=NOW)
    starts = [slot.window_start_ms for slot in bookings if isinstance(slot, AssignedSlot)]
    assert (said.placed, said.refused) == (len(starts), events - len(starts))
    assert said.window_count == len(set(starts))
    assert {to_ms(fill.start): fill.added for fill in said.windows} == {each: starts.count(each) for each in starts}
