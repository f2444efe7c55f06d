"""The command line's processes collect garbage less often; a program that uses the library decides that itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = """
import gc, importlib, sys
before = gc.get_threshold()
importlib.import_module(sys.argv[1])
print(gc.get_threshold() == before, gc.get_threshold()[0] > 10_000)
"""


@pytest.mark.parametrize(
    ("module", "same", "rare"),
    [
        ("paceline", True, False),
        ("paceline.server.http.app", True, False),
        ("paceline.__main__", False, True),
    ],
)
def test_only_the_command_line_sets_how_often_garbage_is_collected(module: str, same: bool, rare: bool) -> None:
    done = subprocess.run([sys.executable, "-c", SHOWN, module], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(same), str(rare)]


STARTS = """
import gc, multiprocessing
from paceline.__main__ import main

def show(pipe):
    pipe.send(gc.get_threshold())

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=show, args=(there,))
    process.start()
    print(here.recv()[0] > 10_000)
    process.join()
"""


def test_so_do_the_processes_that_it_starts(tmp_path: Path) -> None:
    """`multiprocessing` imports the main module in each of them."""
    script = tmp_path / "paceline.script.py"  # as pip writes one
    script.write_text(STARTS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
