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


def test_a_name_that_headgate_has_not_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from headgate import Limitr\n")
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 'Module "headgate" has no attribute "Limitr"' in run.stdout
