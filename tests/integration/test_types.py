"""The public API and the examples under mypy in strict mode, as an application would be checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("checked", ["tests/typed_program.py", "examples"])
def test_strict_types(checked: str) -> None:
    # Bases are named, because `examples/invoices` is a package whose parent is none.
    command = [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", checked]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
