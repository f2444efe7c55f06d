"""Slots under several configs: what two and eight cost beside one, and how the cost grows with the backlog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

import psycopg

from benchmarks.measure import Row, Table, Target, per_second, race, summary
from benchmarks.slot_caller import assign
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy

_numbers = count()
MOST = {2: 1.6, 8: 3.0}
"""What so many configs may cost, as a multiple of one."""
SETS = 300
"""Different sets of configs at once."""


def policy(index: int) -> WindowPolicy:
    """The first is the narrowest; the others are wider, or have more room."""
    return WindowPolicy(100 * (1 + index), timedelta(seconds=4 * (1 + index // 2)))


def several_configs(table: Table, url: str, quick: bool) -> None:
    """Adds the rows of this module."""
    share = 4 if quick else 1
    _compare(table, "lone caller", lambda configs: _calls(url, configs, 1, 400 // share), quick)
    _compare(table, "64 callers", lambda configs: _calls(url, configs, 64, 8000 // share), quick)
    bulk_events = 10_000 if quick else 100_000
    _compare(table, "bulk", lambda configs: _bulk(url, configs, bulk_events), quick)
    many_sets(table, url, quick)
    growth(table, url, quick)


def _compare(table: Table, kind: str, rate: Callable[[int], float], quick: bool) -> None:
    contestants = {str(configs): partial(rate, configs) for configs in (1, *MOST)}
    result = race(contestants, repeats=2 if quick else 5)
    for configs, most in MOST.items():
        shown = per_second(result.spread(str(configs)).median)
        # Rates: the cost of several is the rate of one over theirs.
        ratio = result.ratio("1", str(configs))
        table.add(Row(f"{configs} configs, {kind}", shown, "one config", ratio, Target(most=most)))
    table.note(summary(f"configs, {kind}", result))


def many_sets(table: Table, url: str, quick: bool) -> None:
    """200 callers who book under a bank and 300 merchants, beside callers who all book under the same two configs."""
    events = 1500 if quick else 6000
    result = race({str(sets): partial(_sets, url, sets, events) for sets in (SETS, 1)}, repeats=2 if quick else 5)
    shown = per_second(result.spread(str(SETS)).median)
    ratio = result.ratio(str(SETS), "1")
    table.add(Row(f"bank and one of {SETS} merchants, 200 callers", shown, "one merchant", ratio, Target(least=0.5)))
    table.note(summary("sets of configs", result))


def _sets(url: str, sets: int, events: int) -> float:
    async def run() -> float:
        async with SlotScheduler.open(url) as slots:
            number, at = next(_numbers), _instant()
            await slots.configure(f"bank-{number}", policy(0))
            await slots.configure(f"merchant-{number}-*", policy(0))
            names = [(f"bank-{number}", f"merchant-{number}-{index}") for index in range(sets)]

            async def book(prefix: str, total: int) -> None:
                numbers = iter(range(total))

                async def caller() -> None:
                    for nth in numbers:
                        await slots.assign(f"{prefix}-{number}-{nth}", names[nth % sets], at)

                await asyncio.gather(*(caller() for _ in range(200)))

            await book("warm", SETS)
            started = time.perf_counter()
            await book("sets", events)
            return events / (time.perf_counter() - started)

    return asyncio.run(run())


def _instant() -> datetime:
    return datetime(2050, 1, 1, 16, tzinfo=UTC) + timedelta(days=next(_numbers))


async def _names(slots: SlotScheduler, configs: int) -> list[str]:
    number = next(_numbers)
    names = [f"joint-{number}-{index}" for index in range(configs)]
    for index, name in enumerate(names):
        await slots.configure(name, policy(index))
    return names


def _calls(url: str, configs: int, callers: int, events: int) -> float:
    async def run() -> float:
        async with SlotScheduler.open(url) as slots:
            names, at = await _names(slots, configs), _instant()
            await assign(slots, names, 1, 3, f"warm-{names[0]}", at)
            started = time.perf_counter()
            await assign(slots, names, callers, events, names[0], at)
            return events / (time.perf_counter() - started)

    return asyncio.run(run())


def _bulk(url: str, configs: int, events: int) -> float:
    async def run() -> float:
        async with SlotScheduler.open(url) as slots:
            names, at_ms = await _names(slots, configs), to_ms(_instant())
            requests = (SlotRequest(f"{names[0]}-{n}", at_ms) for n in range(events))
            started = time.perf_counter()
            async for _ in slots.assign_stream(requests, names):
                pass
            return events / (time.perf_counter() - started)

    return asyncio.run(run())


def growth(table: Table, url: str, quick: bool) -> None:
    """The cost of a lone call behind full windows of each of two configs, not of the same length."""
    events = 100 if quick else 600

    def behind(windows: int) -> float:
        async def run() -> float:
            async with SlotScheduler.open(url) as slots:
                names, at = await _names(slots, 2), _instant()
                _fill(url, names, at, windows)
                await assign(slots, names, 1, 20, f"warm-{names[0]}", at)
                taken = await assign(slots, names, 1, events, names[0], at)
                return sorted(taken)[len(taken) // 2]

        return asyncio.run(run())

    result = race(
        {"10": lambda: behind(10), "100,000": lambda: behind(100_000)}, repeats=3 if quick else 5, warm_up=False
    )
    shown = f"{result.spread('100,000').median * 1000:.2f} ms"
    ratio = result.ratio("100,000", "10")
    table.add(Row("2 configs behind 100,000 full windows", shown, "behind 10", ratio, Target(most=1.3)))


def _fill(url: str, names: Sequence[str], at: datetime, windows: int) -> None:
    """Makes windows from `at` on full, as bursts would have left them: of each config somewhat more than of the one
    before."""
    with psycopg.connect(url, autocommit=True) as connection:
        for index, name in enumerate(names):
            size, limit, number = policy(index).window, policy(index).max_per_window, windows + 3 * index
            connection.execute(
                "INSERT INTO paceline_slot_window SELECT %s, %s + n * %s::interval, %s, %s"
                " FROM generate_series(0, %s) n",
                (name, at, size, limit, limit, number - 1),
            )
            connection.execute("INSERT INTO paceline_slot_run VALUES (%s, %s, %s)", (name, at, at + size * number))
