"""Slots where payers are many and events are due now: what a feed of new payers costs the database, how many events of
a steady stream are pushed on, and what the metrics of thousands of configs cost a scrape."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from itertools import count

import psycopg

from benchmarks.http_load import paceline_process
from benchmarks.measure import Row, Spread, Table, Target
from paceline.durations import to_ms
from paceline.slots import SlotRequest, SlotScheduler, WindowPolicy
from paceline.slots.model import BookingGroup
from paceline.slots.stores import slot_store
from paceline.slots.windows import align
from paceline.testing.load import KeepAlive

_numbers = count()
LIMIT, WINDOW_MS = 100, 4000
LOAD = 0.8
"""Of the limit: what the steady stream asks for."""


def payers(table: Table, url: str, quick: bool) -> None:
    """Adds the rows of this module."""
    new_payers(table, url, 1000, repeats=2 if quick else 5)
    near_now(table, url, quick)
    metrics(table, url, quick)


def new_payers(table: Table, url: str, events: int, repeats: int) -> None:
    """The transactions of a feed whose lines all have a payer of their own, whose config the template makes."""
    figures = [_feed(url, events) for _ in range(repeats)]
    transactions = Spread.of([float(transactions) for transactions, _ in figures])
    shown = f"{statistics.median(seconds for _, seconds in figures):.2f} s"
    work = f"feed of {events:,} new payers under a bank: transactions"
    table.add(Row(work, shown, "counted", transactions, Target(most=60)))


def _feed(url: str, events: int) -> tuple[int, float]:
    number = next(_numbers)
    at = datetime(2070, 1, 1, 16, tzinfo=UTC) + timedelta(days=number)

    async def run() -> tuple[int, float]:
        async with SlotScheduler.open(url) as slots:
            await slots.configure(f"feed-bank-{number}", WindowPolicy(LIMIT, timedelta(milliseconds=WINDOW_MS)))
            await slots.configure(f"payer-{number}-*", WindowPolicy(LIMIT, timedelta(milliseconds=WINDOW_MS)))
            groups = [
                BookingGroup(
                    (f"feed-bank-{number}", f"payer-{number}-{n}"), [SlotRequest(f"feed-{number}-{n}", to_ms(at))]
                )
                for n in range(events)
            ]
            before, started = _transactions(url), time.perf_counter()
            await slots.book_groups(groups)
            seconds = time.perf_counter() - started
            return _transactions(url) - before - 1, seconds

    return asyncio.run(run())


def _transactions(url: str) -> int:
    """The number of the transaction that asks for it; only those that write have one."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        return int(row[0])


def near_now(table: Table, url: str, quick: bool) -> None:
    """A steady stream of events that are due when they come, by a clock of its own: no second passes."""
    events = 200 if quick else 800
    for spread, most in (("even", 0.05), ("jitter", None)):
        shares, peaks = zip(*(_steady(url, spread, events) for _ in range(2 if quick else 5)), strict=True)
        work = f"near-now events at {LOAD:.0%} load, {spread}: pushed on"
        table.add(Row(work, f"{statistics.median(shares):.1%}", "all", Spread.of(shares), Target(most=most)))
        work, most = f"  their peak in a sliding second, {spread}", 1.3 if most else None
        average = LIMIT * 1000 / WINDOW_MS
        ratio = Spread.of([peak / average for peak in peaks])
        table.add(Row(work, f"{statistics.median(peaks):g}", "the limit's average", ratio, Target(most=most)))


def _steady(url: str, spread: str, events: int) -> tuple[float, int]:
    """The share of events that came to a later window, and the most in any second."""
    number, step = next(_numbers), WINDOW_MS / LIMIT / LOAD
    first = to_ms(datetime(2071, 1, 1, tzinfo=UTC) + timedelta(days=number))

    async def run() -> tuple[float, int]:
        store = await slot_store(url)
        name, times, pushed = f"steady-{number}", [], 0
        try:
            await store.configure(name, WindowPolicy(LIMIT, timedelta(milliseconds=WINDOW_MS), spread), now_ms=first)
            for n in range(events):
                now = first + round(n * step)
                (slot,) = await store.book(name, [SlotRequest(f"{name}-{n}", now)], now_ms=now)
                assert not isinstance(slot, Exception), slot
                pushed += slot.window_start_ms > align(now, WINDOW_MS)
                times.append(slot.scheduled_ms)
        finally:
            await store.close()
        times.sort()
        return pushed / events, max(n + 1 - bisect_left(times, at - 999) for n, at in enumerate(times))

    return asyncio.run(run())


def metrics(table: Table, url: str, quick: bool) -> None:
    """A scrape of a service that booked under many configs of one template, beside the same one before it did."""
    configs, number = 500 if quick else 10_000, next(_numbers)
    with paceline_process(url) as (port, _):
        few, many, series = asyncio.run(_scrapes(port, number, configs, 5 if quick else 20))
    shown = f"{statistics.median(many) * 1000:.1f} ms"
    work = f"/metrics with {configs:,} configs of a template"
    table.add(Row(work, shown, "50 ms", Spread.of([seconds / 0.05 for seconds in many]), Target(most=1)))
    table.add(
        Row("  its series", f"{series[1]:,}", "with one config", Spread.of([series[1] / series[0]]), Target(most=1.1))
    )
    table.note(f"/metrics with one config {statistics.median(few) * 1000:.1f} ms, {series[0]:,} series")


async def _scrapes(port: int, number: int, configs: int, repeats: int) -> tuple[list[float], list[float], list[int]]:
    connections = [KeepAlive(port) for _ in range(32)]
    body = {"configName": f"scraped-{number}-*", "maxPerWindow": LIMIT, "windowSizeSecs": WINDOW_MS / 1000}
    status, answer = await connections[0].post("/admin/rate-limit/config", json.dumps(body).encode())
    assert status == 200, answer
    numbers = iter(range(configs))

    async def book(connection: KeepAlive, most: int) -> None:
        for n, _ in zip(numbers, range(most), strict=False):
            event = {"eventId": f"scraped-{number}-{n}", "configName": f"scraped-{number}-{n}"}
            status, answer = await connection.post(
                "/api/v1/slots", json.dumps({**event, "requestedTime": "2072-01-01T16:00:00Z"}).encode()
            )
            assert status == 200, answer

    async def scrape() -> tuple[list[float], int]:
        seconds: list[float] = []
        for _ in range(repeats):
            started = time.perf_counter()
            status, text = await connections[0].request("GET", "/metrics")
            seconds.append(time.perf_counter() - started)
            assert status == 200, text
        return seconds, sum(not line.startswith(b"#") for line in text.splitlines())

    await book(connections[0], 1)
    few, before = await scrape()
    await asyncio.gather(*(book(connection, configs) for connection in connections))
    many, after = await scrape()
    for connection in connections:
        await connection.close()
    return few, many, [before, after]
