"""Table "Idle": the CPU time and the memory of a service and of a worker that have nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from benchmarks.http_load import paceline_process
from benchmarks.measure import Row, Spread, Table, Target, cpu_seconds, resident_mib
from paceline.testing.servers.postgres import PostgresServer

MOST_PERCENT, MOST_MEGABYTES = 0.5, 90.0


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how much it uses."""
    settle, seconds, rounds = (5, 2, 1) if quick else (20, 20, 3)
    table = Table("Idle")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        postgres = stack.enter_context(PostgresServer(fsync=True))
        processes: dict[str, int] = {}
        for store, url in (("SQLite", f"sqlite:///{folder}/idle.db"), ("PostgreSQL", postgres.url)):
            # First: it migrates the database.
            _, processes[f"service on {store}"] = stack.enter_context(paceline_process(url))
            processes[f"worker on {store}"] = stack.enter_context(_worker(url))
        time.sleep(settle)
        used = [_percent_used(processes, seconds) for _ in range(rounds)]
        memory = {name: (resident_mib(pid) or 0) * 1.048576 for name, pid in processes.items()}
    for name in processes:
        percent = Spread.of([figures[name] for figures in used])
        shown = f"{percent.median:.2f} %"
        table.add(Row(f"CPU of an idle {name}", shown, "percent of a core", percent, Target(most=MOST_PERCENT)))
        megabytes = Spread.of([memory[name]])
        shown = f"{megabytes.median:.0f} MB"
        table.add(Row(f"memory of an idle {name}", shown, "MB, resident", megabytes, Target(most=MOST_MEGABYTES)))
    table.note(f"{rounds} × {seconds} s, {settle} s after the start, all four processes at once")
    table.close()
    return [table]


@contextmanager
def _worker(url: str) -> Iterator[int]:
    """`paceline worker`; yields its process id."""
    environment = {**os.environ, "PACELINE_DATABASE_URL": url, "PACELINE_LOG_LEVEL": "error"}
    with subprocess.Popen([sys.executable, "-m", "paceline", "worker"], env=environment) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _percent_used(processes: Mapping[str, int], seconds: float) -> dict[str, float]:
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    started = time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - started
    return {name: 100 * (cpu_seconds(pid) - before[name]) / passed for name, pid in processes.items()}
