"""How full the next days are: booked and possible, by the hour."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paceline.durations import to_ms
from paceline.errors import InvalidInput, NotFound
from paceline.slots.forecast.heat_map import HOUR_MS, heat_map, hourly_capacity
from paceline.slots.model import PolicyVersion, WindowPolicy
from paceline.slots.occupancy import CountedWindows, Occupancy, WindowCount
from paceline.slots.scheduler import SlotScheduler
from tests.models.slot_store import MemorySlotStore

MONDAY = datetime(2027, 3, 1, 16, 20, tzinfo=UTC)
NOW = to_ms(MONDAY)
HOUR = NOW - NOW % HOUR_MS


def shown(policy: WindowPolicy, windows: list[WindowCount], days: int = 2) -> tuple[tuple[int, ...], tuple[int, ...]]:
    version = PolicyVersion("default", 1, policy, MONDAY)
    made = heat_map(version, Occupancy(policy, CountedWindows(windows)), NOW, days)
    assert (made.config_name, made.start_ms) == ("default", HOUR)
    return made.taken, made.capacity


def test_windows_count_in_the_hour_they_start_in() -> None:
    policy = WindowPolicy(10, "PT4S")
    last = HOUR + 48 * HOUR_MS
    starts = [(HOUR, 3), (HOUR + HOUR_MS - 4000, 4), (HOUR + HOUR_MS, 5), (last - 4000, 6), (last, 7)]
    taken, capacity = shown(policy, [WindowCount(start, count, count) for start, count in starts])
    assert (taken[0], taken[1], taken[47], sum(taken)) == (7, 5, 6, 18)
    assert set(capacity) == {9000}
    assert len(taken) == len(capacity) == 48


def test_closed_hours_have_no_capacity_and_a_curve_has_its_own() -> None:
    open_hours = {"zone": "UTC", "open": [{"days": ["MON", "TUE"], "from": "09:00", "to": "17:30"}]}
    policy = WindowPolicy(
        10, "PT1M", calendar=open_hours, curve=[{"days": ["TUE"], "from": "09:00", "to": "10:00", "max": 2}]
    )
    _, capacity = shown(policy, [])
    assert capacity[:3] == (600, 300, 0), "from four to half past five"
    assert capacity[17:19] == (120, 600), "nine and ten on Tuesday"


@pytest.mark.parametrize(
    ("window", "expected"), [("PT2H", [5, 0, 5]), ("PT1H", [5, 5, 5]), ("PT7S", [2575, 2570, 2570])]
)
def test_a_window_longer_than_an_hour_counts_once(window: str, expected: list[int]) -> None:
    policy = WindowPolicy(5, window)
    assert [hourly_capacity(policy, n * HOUR_MS) for n in range(3)] == expected


async def test_the_scheduler_reads_it_from_its_store() -> None:
    async with SlotScheduler(MemorySlotStore()) as slots:
        await slots.configure("default", WindowPolicy(2, "PT1H"))
        for n in range(3):
            await slots.assign(f"e{n}", "default", datetime.now(UTC))
        made = await slots.heat_map("default", 1)
        assert sum(made.taken) == 3
        assert len(made.capacity) == 24
        with pytest.raises(NotFound):
            await slots.heat_map("none")
        for days in (0, 15):
            with pytest.raises(InvalidInput, match="days"):
                await slots.heat_map("default", days)
