"""The public API under mypy in strict mode, as an application would be checked.

`make types` checks what must pass, in the same mode: `tests/typed_program.py` and the examples among the rest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_name_that_paceline_has_not_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from paceline import Limitr\n")
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 'Module "paceline" has no attribute "Limitr"' in run.stdout
