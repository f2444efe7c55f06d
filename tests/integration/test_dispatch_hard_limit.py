"""Two processes share a plan: by the limit store's clock, no sliding second sees more admissions than it allows."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate import DispatchQueue
from tests.integration.guarded_process import ITEM_TYPE, PLAN

ROOT = Path(__file__).parents[2]
LIMIT, ITEMS, SECOND_US = 20, 90, 1_000_000


@pytest.mark.parametrize("store", ["postgres", "redis"])
async def test_two_processes_keep_the_limit_in_every_sliding_second(
    store: str, postgres_url: str, redis_url: str
) -> None:
    async with DispatchQueue.open(postgres_url) as queue:
        await queue.configure(ITEM_TYPE, admission_plan=PLAN, jitter_window_ms=0, dispatch_interval_secs=0.1)
        await queue.enqueue_many(ITEM_TYPE, [(f"call-{n}", {}, None) for n in range(ITEMS)])
        limits = postgres_url if store == "postgres" else redis_url
        reports = await asyncio.gather(*(guarded(postgres_url, limits) for _ in range(2)))
    assert sum(report["runs"] for report in reports) == ITEMS
    admissions = sorted((before, after) for report in reports for before, after in report["admissions"])
    assert len(admissions) == ITEMS, "each execution was admitted, and every admission used"
    for first, _ in admissions:
        surely = [1 for before, after in admissions if before >= first and after < first + SECOND_US]
        assert len(surely) <= LIMIT
    assert all(report["runs"] for report in reports), "both took part"


async def guarded(queue_url: str, limits_url: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.integration.guarded_process", queue_url, limits_url, str(LIMIT), str(ITEMS)]
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(output)
    return answer
