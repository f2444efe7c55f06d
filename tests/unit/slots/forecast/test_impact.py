"""What a change of a policy would do to booked slots, against counting them one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.slots.forecast.impact import PAGE, WarningCode, WindowGroup, changed_windows, warnings, windows_ahead
from paceline.slots.model import WindowPolicy
from paceline.slots.occupancy import CountedWindows, FullRun, Occupancy, WindowCount
from paceline.slots.windows import align
from tests.effort import examples

NOW = 1_800_000_010_500
SECONDS = {"PT1S": 1000, "PT2S": 2000, "PT5S": 5000}
policies = st.builds(WindowPolicy, st.integers(1, 4), st.sampled_from(sorted(SECONDS)))
times = st.lists(st.integers(-6000, 12_000).map(lambda after: NOW + after), max_size=30)


class Slots:
    """A reader of slots by their times; those before `missing_ms` were pruned."""

    def __init__(self, policy: WindowPolicy, times: list[int], missing_ms: int = 0) -> None:
        self.size_ms = policy.size_ms
        self.booked = sorted(at for at in times if at >= missing_ms)
        self.missing_ms = missing_ms

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        counts = Counter(align(at, self.size_ms) for at in self.booked)
        return [WindowCount(start, n, n) for start, n in sorted(counts.items()) if start >= start_ms][:limit]

    def run_before(self, start_ms: int) -> FullRun | None:
        return None

    def runs_before(self, starts_ms: Any) -> list[FullRun | None]:
        return [None] * len(starts_ms)

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        chosen = [at for at in self.booked if at >= from_ms and (until_ms is None or at < until_ms)]
        counts = Counter(align(at, size_ms) for at in chosen)
        return [WindowCount(start, n, n) for start, n in sorted(counts.items())]

    def missing_until(self) -> int:
        return self.missing_ms

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        raise NotImplementedError


@given(policies, policies, times)
@settings(max_examples=examples(300))
def test_slots_over_the_new_limit_are_those_still_to_come(
    policy: WindowPolicy, changed: WindowPolicy, booked: list[int]
) -> None:
    occupancy = Occupancy(policy, Slots(policy, booked))
    groups = list(windows_ahead(occupancy, policy, changed.size_ms, NOW))
    first = align(NOW, changed.size_ms)
    ahead = [at for at in booked if at >= first]
    assert sum(group.taken for group in groups) == len(ahead)
    assert sum(group.passed for group in groups) == sum(at < NOW for at in ahead)
    expected = 0
    for start, taken in Counter(align(at, changed.size_ms) for at in ahead).items():
        to_come = sum(align(at, changed.size_ms) == start and at >= NOW for at in ahead)
        if changed.size_ms != policy.size_ms or changed.max_per_window < policy.max_per_window:
            expected += min(to_come, max(taken - changed.max_per_window, 0))
    assert changed_windows(policy, changed, groups) == (0, expected)


def test_a_present_window_of_which_slots_were_pruned_is_counted_by_its_slots() -> None:
    """Its counter says that it is full, and not how many slots are left in it."""
    policy = WindowPolicy(3, "PT5S")
    present = align(NOW, 5000)
    reader = Slots(policy, [present + 4000, present + 4500], missing_ms=present + 1000)
    groups = list(windows_ahead(Occupancy(policy, reader), policy, 5000, present + 4200))
    assert groups == [WindowGroup(present, 2, 1)]
    stale = CountedWindows([WindowCount(present, 3, 3)], reader)
    assert list(windows_ahead(Occupancy(policy, stale), policy, 5000, present + 4200)) == groups


def test_many_windows_are_read_page_by_page() -> None:
    policy = WindowPolicy(1, "PT1S")
    first = align(NOW, 1000) + 1000
    counts = [WindowCount(first + 1000 * n, 1, 1) for n in range(PAGE + 3)]
    groups = list(windows_ahead(Occupancy(policy, CountedWindows(counts)), policy, 1000, NOW))
    assert [group.start_ms for group in groups] == [count.start_ms for count in counts]


def test_slots_of_several_configs_count_each() -> None:
    policy, lower = WindowPolicy(5, "PT1S"), WindowPolicy(2, "PT1S")
    assert changed_windows(policy, lower, [WindowGroup(0, 4, 1, 10), WindowGroup(1000, 2, 0, 3)]) == (0, 20)
    assert changed_windows(lower, policy, [WindowGroup(0, 9)]) == (0, 0), "a raise leaves nothing over"
    assert changed_windows(policy, lower, [WindowGroup(0, 4, 4)]) == (0, 0), "what has passed concerns nobody"


def test_slots_in_windows_that_a_calendar_closes() -> None:
    policy = WindowPolicy(5, "PT1H")
    nights = WindowPolicy(5, "PT1H", calendar={"zone": "UTC", "open": [{"from": "00:00", "to": "06:00"}]})
    hour = 3_600_000
    groups = [WindowGroup(5 * hour, 3), WindowGroup(6 * hour, 3, 1, 2), WindowGroup(7 * hour, 2, 2)]
    assert changed_windows(policy, nights, groups) == (4, 0)


def test_only_effects_on_some_slots_are_warnings() -> None:
    assert warnings(0, 0, 0) == []
    found = warnings(3, 0, 2)
    assert [(warning.code, warning.slots) for warning in found] == [
        (WarningCode.PAST_HORIZON, 3),
        (WarningCode.OVER_LIMIT, 2),
    ]
    assert all(warning.detail.startswith(f"{warning.slots} booked slots") for warning in found)
    assert [warning.code for warning in warnings(0, 1, 0)] == [WarningCode.CLOSED]
