"""The console with 100,000 slots, 5,000 items and 200 dead letters, beside the same pages without data."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2 as httpx
from playwright.sync_api import Page, sync_playwright

from benchmarks.http_load import server
from benchmarks.measure import Race, Row, Spread, Table, Target, race
from paceline import DispatchQueue, SlotScheduler, WindowPolicy

SLOTS, ITEMS, DEAD = 100_000, 5_000, 200
BATCH = 10_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PAGES = {
    "overview": "overview",
    "charts": "charts",
    "slots": "slots",
    "slots, the latest first": "slots?sort=-scheduledTime",
    "configs": "configs/default",
    "replan": "replan/default",
    "limits": "limits",
    "dispatch": "dispatch",
    "items": "dispatch/JOB",
    "items, the latest first": "dispatch/JOB?status=READY&sort=-executeAt",
    "dead letters by error": "dispatch/JOB?status=DEAD_LETTER",
    "lanes": "dispatch/JOB/lanes",
    "periodic": "periodic",
    "workers": "workers",
    "payments": "payments",
    "feeds": "feeds",
    "notifications": "notifications",
    "messages": "messages",
    "audit": "audit",
    "search": "search?q=e-99",
}
LISTS = {
    "slots": "/api/v1/slots?limit=50",
    "slots of a config, counted": "/api/v1/slots?configName=default&status=BOOKED&limit=50&total=true",
    "slots, counted, the latest first": "/api/v1/slots?limit=50&total=true&sort=-scheduledTime",
    "items, counted": "/admin/dispatch/JOB/items?limit=50&total=true",
    "items, the latest first": "/admin/dispatch/JOB/items?limit=50&total=true&status=READY&sort=-executeAt",
    "dead letters": "/admin/dispatch/JOB/items?limit=50&total=true&status=DEAD_LETTER&sort=-updatedAt",
    "dead letters by error": "/admin/dispatch/JOB/errors",
    "preview of a change of all": "/admin/dispatch/JOB/preview?change=cancel&status=READY",
    "payments, counted": "/api/v1/payments?limit=50&total=true",
    "payments of a status": "/api/v1/payments?limit=50&total=true&status=SCHEDULED&sort=-id",
    "search": "/api/v1/search?q=e-99",
}
PAINT = """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"""
FIRST_PAINT_MS, LIST_MS = 1000, 300
"""What a page and a list may take at this size, on a quiet machine."""
SHOWN, LISTED = Target(most=2), Target(most=20)
"""How many times as long as without data: a page until its data is shown, and a list, which then has fifty rows, and a
total that counts a hundred thousand."""
PARTY = {"name": "Acme Ltd", "iban": "DE89370400440532013000"}
PAYEE = {"name": "Bob Builder", "iban": "GB29NWBK60161331926819"}


async def seed(database: Path, share: int) -> None:
    """Books slots, queues items and kills some of them; `share` of a hundred of the full size."""
    at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    async with SlotScheduler.open(f"sqlite:///{database}") as slots:
        await slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
        for first in range(0, SLOTS * share // 100, BATCH):
            await slots.assign_many([(f"e-{n:06}", at) for n in range(first, first + BATCH)], "default")
    async with DispatchQueue.open(f"sqlite:///{database}") as queue:
        await queue.configure("JOB", enabled=False)
        await queue.enqueue_many("JOB", [(f"job-{n:05}", {"n": n}, at) for n in range(ITEMS * share // 100)])
    with sqlite3.connect(database) as connection:
        connection.execute(
            "UPDATE paceline_dispatch_queue SET queue_status = 'DEAD_LETTER', last_error = 'timeout after ' ||"
            " (rowid % 7) || ' s in step ' || char(65 + rowid % 5)"
            " WHERE item_type = 'JOB' AND item_id < ?",
            (f"job-{DEAD * share // 100:05}",),
        )
    connection.close()


def tables(quick: bool) -> list[Table]:
    """First paint and time to the data of each page, then each list by itself."""
    share, repeats = (10, 1) if quick else (100, 3)
    with services(share) as (filled, empty):
        items = ITEMS * share // 100
        size = f"{SLOTS * share // 100:,} slots, {items:,} items and payments, {DEAD * share // 100} dead letters"
        return [pages(filled, empty, repeats, size), lists(filled, empty, repeats * 4, size)]


@contextmanager
def services(share: int) -> Iterator[tuple[str, str]]:
    """Two services, one with data; yields their addresses."""
    with tempfile.TemporaryDirectory() as directory:
        addresses = []
        settings = []
        for name, size in (("filled", share), ("empty", 0)):
            database = Path(directory) / f"{name}.db"
            asyncio.run(seed(database, size))
            settings.append({"PACELINE_DATABASE_URL": f"sqlite:///{database}"})
        command = ("-m", "paceline", "serve", "--port", "0")
        with server(*command, **settings[0]) as filled, server(*command, **settings[1]) as empty:
            addresses = [f"http://127.0.0.1:{port}" for port in (filled, empty)]
            pay(addresses[0], share)
            yield addresses[0], addresses[1]


def pay(service: str, share: int) -> None:
    """Submits a feed of payments that are due in an hour; `share` of a hundred of as many as there are items."""
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    payment = {"amount": "12.34", "currency": "EUR", "payer": PARTY, "payee": PAYEE, "executeAt": at}
    lines = [json.dumps({"paymentId": f"pay-{n:05}", **payment}) for n in range(ITEMS * share // 100)]
    kind = {"Content-Type": "application/x-ndjson"}
    answer = httpx.post(f"{service}/api/v1/payments/bulk", content="\n".join(lines), headers=kind, timeout=120)
    assert answer.json()["accepted"] == len(lines), answer.text


def pages(filled: str, empty: str, repeats: int, size: str) -> Table:
    table = Table(f"Console: pages with {size}")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
    if chromium is None:
        table.note("no Chromium is installed: nothing was measured")
        table.close()
        return table
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        for name, address in PAGES.items():
            painted: dict[str, list[float]] = {"filled": [], "empty": []}
            contestants = {
                which: opened(page, f"{url}/#/{address}", painted[which])
                for which, url in (("filled", filled), ("empty", empty))
            }
            shown = race(contestants, repeats=repeats)
            table.add(within(f"{name}: first paint", painted["filled"], FIRST_PAINT_MS))
            table.add(beside(f"{name}: data shown", shown, SHOWN))
        browser.close()
    table.close()
    return table


def within(work: str, figures: Sequence[float], allowed_ms: int) -> Row:
    """Milliseconds, beside those that are allowed."""
    ratio = Spread.of([figure / allowed_ms for figure in figures])
    return Row(work, f"{statistics.median(figures):.1f} ms", f"{allowed_ms} ms", ratio, Target(most=1))


def beside(work: str, race: Race, target: Target) -> Row:
    """Milliseconds, beside those without data."""
    ours, without = (race.spread(name).median for name in ("filled", "empty"))
    return Row(work, f"{ours:.1f} ms", f"without data, {without:.1f} ms", race.ratio("filled", "empty"), target)


def opened(page: Page, address: str, painted: list[float]) -> Callable[[], float]:
    """Loads a page afresh; milliseconds until its data is shown. Adds the time of its first paint to `painted`."""

    def load() -> float:
        page.goto("about:blank")
        begun = time.perf_counter()
        page.goto(address)
        # The search is not refreshed, so its results are shown instead.
        page.get_by_text("live as of").or_(page.locator("main [role=status]:not(:empty)")).first.wait_for()
        elapsed = (time.perf_counter() - begun) * 1000
        painted.append(float(page.evaluate(PAINT)))
        return elapsed

    return load


def lists(filled: str, empty: str, repeats: int, size: str) -> Table:
    table = Table(f"Console: lists with {size}")
    with httpx.Client(base_url=filled, timeout=60) as full, httpx.Client(base_url=empty, timeout=60) as bare:
        for name, address in LISTS.items():
            shown = race({"filled": answered(full, address), "empty": answered(bare, address)}, repeats=repeats)
            table.add(within(f"{name}: answered", shown.figures["filled"], LIST_MS))
            table.add(beside(f"{name}: with data", shown, LISTED))
    table.close()
    return table


def answered(http: httpx.Client, address: str) -> Callable[[], float]:
    """Milliseconds until a list is answered."""

    def get() -> float:
        begun = time.perf_counter()
        answer = http.get(address)
        elapsed = (time.perf_counter() - begun) * 1000
        assert answer.status_code == 200, answer.text
        return elapsed

    return get
