"""Each command can be imported first, though the suite's programs start with all of our modules loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests import warm_start

FIRST = """
import gc, importlib, os, sys
gc.disable()
sys.path.insert(0, sys.argv.pop(1))
import warm_start
warm_start.load(warm_start.PACKAGES.split())
assert "headgate" not in sys.modules
for name in sys.argv[1:]:
    if os.fork() == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.wait()
"""

OTHERS = ["headgate.server.worker", "headgate.server.http.app", "headgate.apps.payments.downstream.server"]


def test_each_module_that_a_program_begins_with_can_be_imported_first() -> None:
    commands = [name for name in warm_start.own_modules() if re.fullmatch(r"headgate\.server\.cli\.\w+", name)]
    assert len(commands) > 20
    done = subprocess.run(
        [sys.executable, "-c", FIRST, str(Path(warm_start.__file__).parent), *commands, *OTHERS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "")
