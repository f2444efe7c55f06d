"""Table "Command line": the CPU time of commands that only read, as a script would call them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks.measure import Row, Spread, Table, Target

MOST_SECONDS = 0.4
BOOKED = ("slots", "assign", "--event", "pay-1", "--at", "2030-03-01T16:00:00Z")
READ = {
    "paceline slots show": ("slots", "show", "pay-1"),
    "paceline config get": ("config", "get", "default"),
    "paceline queue stats": ("queue", "stats"),
    "paceline --help": ("--help",),
}


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs."""
    table = Table("Command line")
    with tempfile.TemporaryDirectory() as folder:
        # An installed program has its bytecode; a tree that is never written has none.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PACELINE_DATABASE_URL"] = f"sqlite:///{folder}/command.db"

        def cpu_seconds(words: tuple[str, ...]) -> float:
            before = getrusage(RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "paceline", *words]
            subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            after = getrusage(RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        cpu_seconds(BOOKED)
        for name, words in READ.items():
            cpu_seconds(words)
            used = Spread.of([cpu_seconds(words) for _ in range(2 if quick else 10)])
            shown = f"{used.median * 1000:.0f} ms"
            table.add(Row(f"CPU time of {name}", shown, "seconds", used, Target(most=MOST_SECONDS)))
    table.note("its bytecode is there; one process a call, an SQLite file")
    table.close()
    return [table]
