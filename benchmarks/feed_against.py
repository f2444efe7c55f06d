"""A CSV feed, submitted by this version and by another: `python -m benchmarks.feed_against TREE [--lines N …]`.

TREE is a checkout of the other version with its own `.venv`. Both submit the same lines by the command line, in turns,
each into a database of its own on one PostgreSQL that waits for the disk. CPU is the command's and the server's
together, so it means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.feed_files import BROKEN_EVERY, write_csv
from benchmarks.measure import Row, Spread, Table, Target, per_second
from paceline.testing.servers.postgres import PostgresServer

TICKS = os.sysconf("SC_CLK_TCK")
QUIET = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB"}
"""The server's background work would otherwise count for the contender that runs at that moment."""
SETTLE_SECONDS = 0.3
"""Until the server has counted what the command's connections cost."""


class Run(NamedTuple):
    """One submission."""

    seconds: float
    command_cpu: float
    server_cpu: float


class Version:
    """A checkout, and its database."""

    def __init__(self, tree: Path, server: PostgresServer, database: str, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "PYTHON"))}
        # Compiled modules are kept, as in an installation, but not in the checkout.
        cache = {"PYTHONPYCACHEPREFIX": str(folder / f"{database}-compiled")}
        self._environment = kept | cache | {"PACELINE_DATABASE_URL": server.databases.create(database)}
        self._python = tree.absolute() / ".venv" / "bin" / "python"
        self._server = server.pid
        self._folder = folder
        self.start_up = 0.0
        self.runs: list[Run] = []

    def warm_up(self) -> None:
        """Migrates the database, compiles the modules, and measures a start."""
        self._submit(100, "first")
        self.start_up = min(self._submit(1, f"start-{number}").command_cpu for number in range(3))

    def submit(self, lines: int) -> None:
        self.runs.append(self._submit(lines, f"round-{len(self.runs)}"))

    def cpu_per_line(self, lines: int) -> list[float]:
        """Microseconds, with the start: to subtract one that was measured at another moment would add its noise."""
        return [1e6 * (run.command_cpu + run.server_cpu) / lines for run in self.runs]

    def _submit(self, lines: int, name: str) -> Run:
        feed = self._folder / f"{name}.csv"
        write_csv(feed, lines, name)
        words = [str(self._python), "-m", "paceline", "payments", "submit", str(feed), "--json"]
        before, started = _cpu(self._server), time.perf_counter()
        process = subprocess.Popen(
            words, env=self._environment, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        with process.stdout:
            result = json.loads(process.stdout.read())
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        seconds = time.perf_counter() - started
        time.sleep(SETTLE_SECONDS)
        assert result["accepted"] == lines - lines // BROKEN_EVERY, result
        feed.unlink()
        return Run(seconds, usage.ru_utime + usage.ru_stime, _cpu(self._server) - before)


def _cpu(server: int) -> float:
    """Seconds that a server, its present and its former children have computed."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(entry.name) == server or int(fields[1]) == server:
                total += sum(map(int, fields[11:15]))
    return total / TICKS


def compare(other: Path, lines: int, rounds: int) -> Table:
    """Adds a row for speed, CPU and start-up."""
    table = Table(f"A CSV feed of {lines:,} lines, this version ÷ {other.name}")
    with (
        tempfile.TemporaryDirectory() as directory,
        PostgresServer(fsync=True, settings=QUIET) as server,
    ):
        folder = Path(directory)
        ours = Version(Path(__file__).parents[1], server, "this_version", folder)
        theirs = Version(other, server, "other_version", folder)
        versions = [theirs, ours]
        for version in versions:
            version.warm_up()
        for number in range(rounds):
            for version in versions if number % 2 == 0 else reversed(versions):
                version.submit(lines)
    speeds = [[lines / run.seconds for run in version.runs] for version in (ours, theirs)]
    shown, goal = (per_second(Spread.of(rates).median) for rates in speeds)
    table.add(Row("lines, with the start", shown, goal, _ratio(*speeds), Target(least=1.0)))
    costs = [version.cpu_per_line(lines) for version in (ours, theirs)]
    shown, goal = (f"{Spread.of(cost).median:.0f} µs" for cost in costs)
    table.add(Row("CPU per line, command and server, with the start", shown, goal, _ratio(*costs), Target(most=1.0)))
    starts = [[version.start_up] for version in (ours, theirs)]
    shown, goal = (f"{start:.2f} s" for (start,) in starts)
    table.add(Row("CPU of a start", shown, goal, _ratio(*starts), Target(most=1.0)))
    return table


def _ratio(ours: list[float], theirs: list[float]) -> Spread:
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feed_against")
    parser.add_argument("tree", type=Path, help="a checkout of the other version, with its .venv")
    parser.add_argument("--lines", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    return 1 if compare(options.tree, options.lines, options.rounds).missed else 0


if __name__ == "__main__":
    sys.exit(main())
