"""Many processes on one SQLite file: each decision waits for its turn, and none is guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROCESSES, CALLS = 8, 60
PROGRAM = """
import sys
from paceline import Limiter
limiter = Limiter("sqlite:///" + sys.argv[1])
decisions = [limiter.acquire(f"user:{number % 3}", "100/day") for number in range(int(sys.argv[2]))]
limiter.close()
print(sum(decision.allowed for decision in decisions), sum(decision.degraded for decision in decisions))
"""


def test_no_decision_is_guessed_while_others_write(tmp_path: Path) -> None:
    """The file is new: whoever is first makes its tables, and the others wait for them, too."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "limits.db"), str(CALLS)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    results = [tuple(map(int, process.communicate(timeout=120)[0].split())) for process in processes]
    assert sum(degraded for _, degraded in results) == 0
    assert sum(allowed for allowed, _ in results) == 300
