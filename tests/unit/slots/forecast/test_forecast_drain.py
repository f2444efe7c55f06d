"""A forecast's backlog over time, from the first window to the last."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.durations import from_ms, to_ms
from paceline.slots.forecast.forecast import DRAIN_POINTS, Forecast, forecast
from paceline.slots.model import SlotRequest, WindowPolicy
from tests.models.slot_store import MemorySlotStore

NOW = 1_803_000_000_000
DAY = 24 * 60 * 60 * 1000
AT = NOW - NOW % DAY + DAY


async def forecast_of(events: int, booked: int = 0, at: int = AT, **policy: Any) -> Forecast:
    store = MemorySlotStore()
    await store.configure("c", WindowPolicy(100, "PT4S", **policy), now_ms=NOW)
    # Every other window holds one, so that no two neighbours are alike.
    await store.book("c", [SlotRequest(f"old-{n}", AT + n * 8000) for n in range(booked)], now_ms=NOW)
    return await store.survey("c", lambda version, view, _: forecast(version, view, NOW, events, at))


@pytest.mark.parametrize(("events", "booked"), [(1, 0), (350, 3), (500_000, 0), (500_000, 2000)])
async def test_the_whole_backlog_drains(events: int, booked: int) -> None:
    said = await forecast_of(events, booked)
    times, left = [at for at, _ in said.drain], [count for _, count in said.drain]
    assert said.drain[0] == (from_ms(AT), events)
    assert said.drain[-1] == (said.drained_by, 0)
    assert times == sorted(set(times))
    assert left == sorted(left, reverse=True)
    assert len(said.drain) <= 2 * DRAIN_POINTS + 2


async def test_what_lies_beyond_the_horizon_stays() -> None:
    said = await forecast_of(5000, max_delay="PT1M")
    assert said.drain[-1] == (said.drained_by, said.refused)


async def test_a_wanted_time_inside_a_window_begins_there() -> None:
    said = await forecast_of(500, at=AT + 1000)
    assert said.drain[0] == (from_ms(AT + 1000), 500)


async def test_nothing_drains_while_it_is_closed() -> None:
    said = await forecast_of(500_000, calendar={"zone": "UTC", "open": [{"from": "09:00", "to": "10:00"}]})
    points = [(to_ms(at) - AT, left) for at, left in said.drain]
    hour = DAY // 24
    a_day = 900 * 100
    assert points[0] == (9 * hour, 500_000)
    for day in range(5):
        closed, opened = (day * DAY + 10 * hour, day * DAY + 33 * hour)
        assert (closed, 500_000 - (day + 1) * a_day) in points
        assert (opened, 500_000 - (day + 1) * a_day) in points
    assert points[-1][1] == 0
