"""Tables of benchmarks have nothing but their rows: what others log goes to a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import logging, os, subprocess, sys, warnings

import structlog
from benchmarks.foreign_logs import kept_apart

noisy = logging.getLogger("noisy")
with kept_apart() as log:
    print("| row 1 |", flush=True)
    noisy.warning("by the root")
    noisy.addHandler(logging.StreamHandler())
    noisy.warning("by a handler of its own")
    structlog.get_logger().warning("by structlog")
    warnings.warn("a warning")
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('by a child')"], check=True)
    print("| row 2 |", flush=True)
text = log.read_text()
log.unlink()
assert all(each in text for each in ("by the root", "by a handler", "by structlog", "a warning", "by a child")), text
sys.stderr.write("afterwards")
"""


def test_nothing_stands_between_the_rows_of_a_table(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "| row 1 |\n| row 2 |\n", "afterwards")
