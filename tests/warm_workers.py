"""Starts pytest-xdist's workers as copies of a process that has imported every test module.

Otherwise each of them would import all modules itself, and in a fresh clone compile them first: that took six workers
140 seconds of CPU time, and takes them 40 as copies. A copy collects the tests again, but finds their modules loaded.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def start(config: pytest.Config, specs: list[Any]) -> None:
    """In the xdist controller: has the workers of these specifications started so, if they run here."""
    if not hasattr(os, "fork"):
        return
    from tests import warm_start

    warm = warm_start.Warm(__file__, *config.args, cwd=config.rootpath)
    script = warm.directory / "python"
    warm_start.write_command(script, warm.address, [])
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = str(script)


if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[1])]
    from tests import migrated, warm_start

    _, address, *collected = sys.argv
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *collected])
    migrated.image_with_log()
    warm_start.name_temporal_build()
    if find_spec("sqlfluff"):
        from tests.models import oracle_grammars

        oracle_grammars.prepare()
    program = warm_start.serve(address)
    try:
        warm_start.become(*program)
    except SystemExit as ended:
        warm_start.end(ended.code)
        raise
    warm_start.end(None)
