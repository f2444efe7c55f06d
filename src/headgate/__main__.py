"""`python -m headgate` is the `headgate` command."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

UNTIL_STOPPED = ("serve", "worker")
"""The commands that run until they are told to stop."""


def main() -> None:
    """Runs the command line. Who is told to stop before there is anything to stop ends well at once: loading all the
    rest takes a second, and a supervisor may change its mind."""
    if sys.argv[1:2] and sys.argv[1] in UNTIL_STOPPED:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, _end)
    else:
        _tell_unknown_variables()
    from headgate.server import cli

    cli.main()


def _tell_unknown_variables() -> None:
    """Before a command's own words; those that keep a log tell it there. Who asks for help is spared loading the
    settings."""
    if not any(name.startswith("HEADGATE_") for name in os.environ) or {"--help", "--version"} & {*sys.argv}:
        return
    from headgate.server.settings import told_unknown

    for line in told_unknown():
        sys.stderr.write(f"headgate: {line}\n")


def _end(_signum: int, _frame: object) -> NoReturn:
    # Not by an exception: it might be raised, and lost, anywhere inside an import.
    os._exit(0)


if __name__ == "__main__":
    main()
