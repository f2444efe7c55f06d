"""`make pictures`: takes the pictures of the console in the documents, from a service with made-up data, and README's
chart and animation."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2 as httpx
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright
from scripts.pace import animate

from paceline import DispatchQueue

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
SIZE: ViewportSize = {"width": 1280, "height": 900}
PARTY = {"name": "Acme Ltd", "iban": "DE89370400440532013000"}
PAYEE = {"name": "Bob Builder", "iban": "GB29NWBK60161331926819"}
ARRIVALS = [max(0, round(random.Random(second).gauss(34, 20))) for second in range(290)]
ARRIVALS[-45] = 3000
"""Orders per second of the last minutes: ragged, and a feed at once."""
ERRORS = (
    "ConnectionError: the bank did not answer within 30 s",
    "ConnectionError: the bank did not answer within 31 s",
    "KeyError: 'invoice 7'",
    "ValueError: account 4711 is closed",
)


def seed(database: Path) -> None:
    """Queues jobs of two lanes and makes some of them dead letters, before the service runs."""

    async def work() -> None:
        at = datetime.now(UTC) + timedelta(minutes=40)
        async with DispatchQueue.open(f"sqlite:///{database}") as queue:
            await queue.configure("INVOICE", enabled=True)
            await queue.configure("ORDER", rate="50/second")
            await queue.enqueue_many("ORDER", [(f"order-{n:05}", {}, None) for n in range(sum(ARRIVALS))])
            for lane, many in (("acme", 180), ("globex", 40)):
                items = [(f"inv-{lane}-{n:04}", {"customer": lane, "number": n}, at) for n in range(many)]
                await queue.enqueue_many("INVOICE", items, lane=lane)

    asyncio.run(work())
    with sqlite3.connect(database) as connection:
        for number in range(30):
            connection.execute(
                "UPDATE paceline_dispatch_queue SET queue_status = 'DEAD_LETTER', retry_count = 5, last_error = ?"
                " WHERE item_id = ?",
                (ERRORS[number % len(ERRORS)], f"inv-acme-{number:04}"),
            )
        connection.executemany(
            "UPDATE paceline_dispatch_queue SET created_at = ?, due_at = ?, begun_at = ?, completed_at = ?,"
            " queue_status = iif(? IS NULL, 'READY', 'COMPLETED') WHERE item_id = ?",
            [(arrived, arrived, left, left, left, f"order-{n:05}") for n, (arrived, left) in enumerate(lives())],
        )
    connection.close()


def lives() -> Iterator[tuple[str, str | None]]:
    """When each order of the last minutes arrived, and when it left at the pace of its limit; None for what waits."""
    now = datetime.now(UTC)
    start = now - timedelta(seconds=len(ARRIVALS))
    free = start

    def text(at: datetime) -> str:
        return at.strftime("%Y-%m-%d %H:%M:%S.%f")

    for second, many in enumerate(ARRIVALS):
        for n in range(many):
            arrived = start + timedelta(seconds=second + n / many)
            free = max(arrived, free + timedelta(seconds=1 / 50))
            yield text(arrived), text(free) if free <= now else None


def fill(http: httpx.Client) -> None:
    """Books slots, accepts a feed of payments, makes plans and sends messages, over HTTP."""
    soon = (datetime.now(UTC) + timedelta(seconds=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:00Z")
    limit = {"configName": "default", "maxPerWindow": 100, "windowSize": "PT4S", "spread": "even"}
    http.post("/admin/rate-limit/config", json=limit).raise_for_status()
    for first, at in ((0, soon), (1000, later)):
        events = [{"eventId": f"order-{n:05}", "requestedTime": at} for n in range(first, first + 1000)]
        http.post("/api/v1/slots/batch", json={"events": events}).raise_for_status()
    for name, capacity in (("gold", 100), ("free", 5)):
        plan = {"algorithm": "token_bucket", "capacity": capacity, "perSecond": capacity / 10}
        http.put(f"/admin/plans/{name}", json=plan).raise_for_status()
    payment = {"currency": "EUR", "payer": PARTY, "payee": PAYEE, "executeAt": later}
    lines = [json.dumps({"paymentId": f"pay-{n:04}", "amount": f"{n + 1}.00", **payment}) for n in range(200)]
    feed = http.post(
        "/api/v1/feeds?name=payroll", content="\n".join(lines), headers={"Content-Type": "application/x-ndjson"}
    )
    feed.raise_for_status()
    http.post("/api/config", json={"userId": 7, "rateLimit": 5, "timeWindow": 60}).raise_for_status()
    for _ in range(8):
        http.post("/api/send", json={"userId": 7, "message": "Your invoice is paid."})


def overview(page: Page) -> None:
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    page.wait_for_timeout(4500)  # until the rates of the last seconds are drawn


def change(page: Page) -> None:
    page.get_by_label("Limit").fill("250")
    page.get_by_label("Events").fill("100000")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("table", name="The effect")).to_be_visible()


def dead_letters(page: Page) -> None:
    expect(page.get_by_role("table", name="Dead letters by error")).to_be_visible()
    page.get_by_role("button", name="Requeue the").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()


def listed(page: Page) -> None:
    expect(page.get_by_role("table").first).to_be_visible()


PICTURES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "console-overview": ("now", overview),
    "console-change": ("configs/default", change),
    "console-dead-letters": ("dispatch/INVOICE?status=DEAD_LETTER", dead_letters),
    "console-search": ("search?q=pay-00", listed),
}


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """A service of its own on a free port; yields its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", "serve", "--port", "0"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "http://" in line)
            yield line.split()[-1]
        finally:
            process.terminate()


def plan(directory: Path, folder: Path) -> None:
    """README's chart: its own two commands."""
    bank = ("--config", "bank", "--events", "500000", "--at", "2030-03-01T16:00:00Z")
    for words in (
        ("config", "set", "bank", "--max", "50", "--window", "1s", "--spread", "even"),
        ("forecast", *bank, "--plot", str(folder.resolve() / "forecast.png")),
    ):
        command = [sys.executable, "-m", "paceline", *words]
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=IMAGES, help="the folder of the pictures")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(PICTURES)}; none: all of them")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PICTURES):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is installed; Debian's chromium or chromium-headless-shell will do")
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        seed(Path(directory) / "paceline.db")
        with served(Path(directory)) as url, sync_playwright() as playwright:
            with httpx.Client(base_url=url, timeout=60) as http:
                fill(http)
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            for name in options.names or PICTURES:
                take(browser.new_page(viewport=SIZE, base_url=url, color_scheme="light"), name, options.into)
            browser.close()
        if not options.names:
            plan(Path(directory), options.into)
    if not options.names:
        with (
            tempfile.TemporaryDirectory() as directory,
            served(Path(directory)) as url,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            animate(browser, url, Path(directory), options.into / "pace.gif")
            browser.close()


def take(page: Page, name: str, folder: Path) -> None:
    """One picture."""
    address, prepare = PICTURES[name]
    page.goto(f"/#/{address}")
    prepare(page)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=folder / f"{name}.png")
    page.close()
    sys.stdout.write(f"{folder / f'{name}.png'}\n")


if __name__ == "__main__":
    main()
