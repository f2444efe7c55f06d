"""A feed whose process is killed three times: every payment is kept once, with its slot and its place in the queue."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue
from paceline.server.wiring.slots import open_slots
from paceline_payments.service.wiring.payments import open_payments
from tests.effort import is_thorough

CHUNK = 1000 if is_thorough() else 250
LINES = 6 * CHUNK
"""They are kept a chunk at a time: the kills come in different chunks, before the last one."""
SUBMIT = f"""
from datetime import timedelta
from paceline.__main__ import main
from paceline_payments.feeds import accepting, receiving
receiving.CHUNK = {CHUNK}
accepting.Feeds.__init__.__kwdefaults__["lease"] = timedelta(seconds=2)
main()
"""
"""A command that resumes what a killed one had after two seconds, not thirty."""
HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"
REST = "12.34,EUR,Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z\n"


def rows(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


def kill_midway(submit: list[str], environment: dict[str, str], url: str, slots: int) -> None:
    """Kills a submission as soon as so many slots are booked."""
    process = subprocess.Popen(submit, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    with psycopg.connect(url, autocommit=True) as connection:
        while process.poll() is None and time.monotonic() < deadline:
            booked = connection.execute("SELECT count(*) FROM paceline_slot").fetchone()
            if booked is not None and booked[0] >= slots:
                break
            time.sleep(0.01)
    process.kill()
    process.wait()


def run_to_the_end(submit: list[str], environment: dict[str, str]) -> Any:
    ended = subprocess.run(submit, env=environment, timeout=200, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def test_killed_submissions_lose_nothing_and_double_nothing(postgres_url: str, tmp_path: Path) -> None:
    feed = tmp_path / "feed.csv"
    with feed.open("w") as file:
        file.write(HEADER)
        file.writelines(f"p{number:05d},{REST}" for number in range(LINES))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    environment["PACELINE_DATABASE_URL"] = postgres_url
    submit = [sys.executable, "-c", SUBMIT, "payments", "submit", str(feed), "--json"]
    for share in (0.1, 0.4, 0.7):
        kill_midway(submit, environment, postgres_url, int(share * LINES))
        kept = rows(postgres_url, "SELECT count(*) FROM paceline_payment")
        queued = rows(postgres_url, "SELECT count(*) FROM paceline_dispatch_queue")
        contexts = rows(postgres_url, "SELECT count(*) FROM paceline_dispatch_context")
        assert kept == queued == contexts, "payment, queue entry and context are one"
        assert kept[0][0] < LINES, "it was killed in time to stop some"
    settings = Settings.load(database_url=postgres_url)
    async with open_slots(settings) as slots, open_queue(settings) as queue:
        # An orphaned slot: its payment is not in the feed.
        await slots.assign_many([("payment:never-sent", "2030-03-01T16:00:00Z")], "default", owner="payments")
        report = await asyncio.to_thread(run_to_the_end, submit, environment)
        assert report["accepted"] + report["duplicates"] == LINES
        async with open_payments(settings, slots, queue) as payments:
            assert await payments.local_intake.reclaim_slots(timedelta(0)) == 1
    for table in ("paceline_payment", "paceline_payment_audit", "paceline_dispatch_queue", "paceline_slot"):
        assert rows(postgres_url, f"SELECT count(*) FROM {table}") == [(LINES,)], table
    apart = "SELECT count(*) FROM paceline_payment p JOIN paceline_slot s ON s.event_id = 'payment:' || p.payment_id"
    assert rows(postgres_url, f"{apart} WHERE s.scheduled_at = p.scheduled_at") == [(LINES,)]
    full = "SELECT max(n) FROM (SELECT count(*) AS n FROM paceline_slot GROUP BY window_start) AS w"
    assert rows(postgres_url, full) == [(100,)]
