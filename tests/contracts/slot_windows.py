"""Looking into a slot store, whichever it is, and checking what must always hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from paceline.durations import LATEST_MS
from paceline.slots.model import PolicyVersion, WindowPolicy
from paceline.slots.occupancy import FullRun, Occupancy, WindowCount, full_runs
from paceline.slots.ports import SlotStore
from paceline.slots.windows import align

CURVE: list[dict[str, Any]] = [
    {"from": "16:00:05", "to": "16:00:20", "max": 1},
    {"from": "17:00:03", "to": "17:00:31", "max": 6},
    {"from": "16:00:35", "to": "16:00:36", "max": 3},
]
"""Limits around T: 16:00 in UTC, 17:00 in Berlin."""


def naive_limit(policy: WindowPolicy, start_ms: int, curve: Sequence[dict[str, Any]] = CURVE) -> int:
    """The most that a window may hold, by comparing clock times as text, twice a second."""
    if not policy.curve:
        return policy.max_per_window
    clocks = _clocks("UTC" if policy.calendar is None else policy.calendar.zone, start_ms, policy.size_ms)
    touched = [entry for entry in curve if any(entry["from"] <= clock < entry["to"] for clock in clocks)]
    return min((entry["max"] for entry in touched), default=policy.max_per_window)


@lru_cache(maxsize=100_000)  # each request of a burst walks the same windows
def _clocks(zone: str, start_ms: int, size_ms: int) -> list[str]:
    moments = range(start_ms, start_ms + size_ms, 500)
    return [f"{datetime.fromtimestamp(moment / 1000, ZoneInfo(zone)):%H:%M:%S}" for moment in moments]


async def windows_and_runs(store: SlotStore, name: str) -> tuple[PolicyVersion, list[WindowCount], list[FullRun]]:
    """Everything the store keeps about a config's windows."""

    def look(
        version: PolicyVersion, occupancy: Occupancy, _now: int
    ) -> tuple[PolicyVersion, list[WindowCount], list[FullRun]]:
        runs: list[FullRun] = []
        run = occupancy.reader.run_before(LATEST_MS - 1)
        while run is not None:
            runs.insert(0, run)
            run = occupancy.reader.run_before(run.start_ms - 1)
        return version, occupancy.reader.windows_from(0, 1_000_000), runs

    return await store.survey(name, look)


async def check_windows(store: SlotStore, name: str, now_ms: int, *, is_partly_gone: bool = False) -> dict[int, int]:
    """Checks that counters match slots and runs match counters; returns slots by window. If slots of the present window
    are gone, it is full whatever it holds."""
    active, windows, runs = await windows_and_runs(store, name)
    size = active.policy.size_ms
    first = align(now_ms, size)
    slots = [slot for slot in await store.booked(LATEST_MS - 1, None, 1_000_000) if name in slot.config_names]
    held = Counter(align(slot.scheduled_ms, size) for slot in slots if slot.scheduled_ms >= first)
    counted = {w.start_ms: w.taken for w in windows if w.taken and w.start_ms >= first}
    if is_partly_gone:
        assert counted.pop(first) == held[first] + active.policy.limit_at(first)
        assert counted == {start: count for start, count in held.items() if start > first}
    else:
        assert counted == dict(held)
    # A run may reach back into the past, which is never read; pruning leaves it whole. Its future part begins with the
    # next open window: now may lie in a closed part of it.
    opening = active.policy.next_open(first)
    ahead = [FullRun(max(run.start_ms, opening), run.resume_ms) for run in runs if run.resume_ms > opening]
    assert ahead == full_runs([w for w in windows if w.start_ms >= first], active.policy)
    return dict(held)
