"""`python -m paceline` is the `paceline` command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

COMPLETION_VARIABLE = "_PACELINE_COMPLETE"
"""Set by the shell's script while it completes a word: standard error is then the user's prompt."""
UNTIL_STOPPED = ("serve", "worker")
"""The commands that run until SIGTERM or SIGINT."""

# Work comes in batches of thousands of objects, which are freed together. By Python's own threshold of 700, the garbage
# collector would examine each of them several times: a tenth of the CPU time of a feed. Here and not in `main`, so that
# it also applies to the processes that `serve --workers` starts.
gc.set_threshold(20_000, 20, 20)


def main() -> None:
    """Runs the command line. A signal during start-up exits with 0 at once: imports take a second, and a supervisor may
    stop it meanwhile."""
    from paceline.extras import installed

    if not installed("queue"):
        from paceline.core_command import main as core_main

        sys.exit(core_main(sys.argv[1:]))
    if sys.argv[1:2] and sys.argv[1] in UNTIL_STOPPED:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _end)
    else:
        _warn_unknown_variables()
    from paceline.server import cli

    cli.main()


def _warn_unknown_variables() -> None:
    """Warns on standard error, before a command's own output; `serve` and `worker` log it. `--help` and `--version`
    do not load the settings, and a completion prints nothing else."""
    is_quiet = COMPLETION_VARIABLE in os.environ or {"--help", "--version"} & {*sys.argv}
    if is_quiet or not any(name.startswith("PACELINE_") for name in os.environ):
        return
    from paceline.server.settings import unknown_variable_warnings

    for line in unknown_variable_warnings():
        sys.stderr.write(f"paceline: {line}\n")


def _end(_signum: int, _frame: object) -> NoReturn:
    # Not by an exception: it might be raised, and lost, anywhere inside an import.
    os._exit(0)


if __name__ == "__main__":
    main()
