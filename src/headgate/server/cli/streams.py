"""Standard output and standard error that are full, closed, or no longer read."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import click


class OutputError(click.ClickException):
    """Standard output can't be written."""

    def __init__(self, problem: str | None) -> None:
        super().__init__(f"standard output can't be written: {problem}")


class ClosedOutput(io.TextIOBase):
    """Takes the place of a standard output that was closed before the process began."""

    def write(self, _text: str) -> int:
        raise OutputError("it is closed")


def replace_closed_streams() -> None:
    """Replaces streams that were closed before the process began, for which Python has None. A write to standard output
    fails then, and what is written to standard error is dropped."""
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends


def discard_unwritten() -> None:
    """Drops output that could not be written. Python would write it again at exit, report that, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
