"""Decisions while the memory store's table grows: `python -m benchmarks.memory_growth KEYS`.

Every decision is on a new key, and each is timed. A process of its own gives the memory back. It prints what it
measured as JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from array import array

from benchmarks.measure import Row, Spread, Table, Target
from paceline import Limiter, Plan, TokenBucket
from paceline.limits.stores.memory import MemoryLimitStore


def growth(table: Table, quick: bool) -> None:
    """The slowest in a thousand decisions, in milliseconds, while the table grows to ten million keys."""
    keys = 100_000 if quick else 10_000_000
    figures = []
    for _ in range(1 if quick else 3):
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory_growth", str(keys)], capture_output=True, text=True, check=True
        )
        figures.append(json.loads(child.stdout))
    tail = Spread.of([figure["p999_ms"] for figure in figures])
    longest = Spread.of([figure["longest_ms"] for figure in figures])
    shown = f"{tail.median * 1000:.0f} µs"
    table.add(Row(f"memory, growing to {keys:,} keys: p99.9", shown, "milliseconds", tail, Target(most=1)))
    table.note(
        f"growing to {keys:,} keys: median {figures[0]['median_us']:.1f} µs, longest {longest} ms,"
        f" {figures[0]['peak_mib']:,.0f} MiB in all"
    )


def measure(keys: int) -> dict[str, float]:
    """Times each of the decisions, with the clock's own cost in it."""
    limiter = Limiter(MemoryLimitStore(max_keys=2 * keys), plans=[Plan("gold", TokenBucket(10**9, 10**6))])
    plans, acquire, clock = ["gold"], limiter.acquire, time.perf_counter_ns
    spans = array("Q", bytes(8 * keys))
    for number in range(keys):
        key = f"user:{number}"
        started = clock()
        acquire(key, plans)
        spans[number] = clock() - started
    ordered = sorted(spans)
    return {
        "median_us": ordered[keys // 2] / 1e3,
        "p999_ms": ordered[keys * 999 // 1000] / 1e6,
        "longest_ms": ordered[-1] / 1e6,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
