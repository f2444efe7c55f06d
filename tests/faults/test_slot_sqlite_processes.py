"""Several processes on one SQLite file: no busy errors, no lost or doubled slot; and one of them killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

from paceline import BlockingSlotScheduler, WindowPolicy
from paceline.durations import to_ms
from paceline.slots.stores import slot_store
from tests.contracts.slot_windows import check_windows
from tests.faults.test_slot_outages import T

CHILD = """
import asyncio, os, signal, sys
from paceline import SlotScheduler

async def main(url, first, doomed):
    async with SlotScheduler.open(url) as slots:
        async def one(number):
            await slots.assign(f"e{number}", "c", "2031-03-01T16:00:00Z")
            print(f"e{number}", flush=True)
            if doomed == "doomed" and number == first + 60:
                os.kill(os.getpid(), signal.SIGKILL)
        # Neighbours overlap by half: every event is asked for by two processes.
        for start in range(first, first + 200, 20):
            await asyncio.gather(*(one(number) for number in range(start, start + 20)))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


def start_children(url: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, url, str(n * 100), "doomed" if n == 1 else "well"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]


async def test_processes_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'slots.db'}"

    def prepare() -> None:
        with BlockingSlotScheduler(url) as slots:
            slots.configure("c", WindowPolicy(10, "PT1S"))

    await asyncio.to_thread(prepare)
    children = start_children(url)
    answers: Counter[str] = Counter()
    for child in children:
        output, _ = await asyncio.to_thread(child.communicate, timeout=120)
        answers.update(output.split())
    assert [child.returncode for child in children] == [0, -9, 0, 0]
    store = await slot_store(url)
    held = await check_windows(store, "c", to_ms(T) - 1)
    assert sum(held.values()) >= len(answers)
    assert set(answers) <= {slot.event_id for slot in await store.booked(to_ms(T) + 10**9, None, 1000)}
    assert {f"e{n}" for n in range(500)} - set(answers) <= {f"e{n}" for n in range(160, 200)}
    assert sorted(held.values())[1:] == [10] * (len(held) - 1)
    await store.close()
