"""Two processes share a plan: by the limit store's clock, no sliding second sees more admissions than it allows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import DispatchQueue
from tests.effort import is_thorough
from tests.integration.guarded_process import ITEM_TYPE, PLAN, READY

ROOT = Path(__file__).parents[2]
LIMIT, ITEMS, SECOND_US = 20, 90 if is_thorough() else 50, 1_000_000


@pytest.mark.parametrize("store", ["postgres", "redis"])
async def test_two_processes_keep_the_limit_in_every_sliding_second(
    store: str, postgres_url: str, redis_url: str
) -> None:
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure(ITEM_TYPE, admission_plan=PLAN, jitter_window_ms=0, dispatch_interval_secs=0.1)
        limits = postgres_url if store == "postgres" else redis_url
        with started(postgres_url, limits) as one, started(postgres_url, limits) as other:
            for process in (one, other):
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == f"{READY}\n"
            await queue.enqueue_many(ITEM_TYPE, [(f"call-{n}", {}, None) for n in range(ITEMS)])
            reports = [await report_of(process) for process in (one, other)]
    assert sum(report["runs"] for report in reports) == ITEMS
    admissions = sorted((before, after) for report in reports for before, after in report["admissions"])
    assert len(admissions) == ITEMS, "each execution was admitted, and every admission used"
    for first, _ in admissions:
        surely = [1 for before, after in admissions if before >= first and after < first + SECOND_US]
        assert len(surely) <= LIMIT
    assert all(report["runs"] for report in reports), "both took part"


def started(queue_url: str, limits_url: str) -> subprocess.Popen[Any]:
    words = [sys.executable, "-m", "tests.integration.guarded_process", queue_url, limits_url, str(LIMIT), str(ITEMS)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def report_of(process: subprocess.Popen[Any]) -> dict[str, Any]:
    output, _ = await asyncio.to_thread(process.communicate, timeout=90)
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(output)
    return answer
