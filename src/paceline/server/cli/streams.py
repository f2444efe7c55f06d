"""Standard output and standard error that are full, closed, no longer read, or in an encoding that lacks some signs."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import click

INSTEAD = {ord(sign): plain for sign, plain in zip("─━╌│╭╮╰╯▁▂▃▄▅▆▇█▏░✔✘", "-#.|++++..::====|.+x", strict=True)}
"""What is drawn where the encoding lacks a sign."""


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


def write_in_any_encoding() -> None:
    """Lets standard output and standard error take every text, also in a locale such as Latin-1. Signs that it lacks
    are drawn with others, or written as JSON escapes them, so that JSON can still be read."""
    codecs.register_error("paceline.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="paceline.plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json  # rarely needed, and `paceline --help` is not to wait for it

    lacking = error.object[error.start : error.end]
    return "".join(INSTEAD.get(ord(sign)) or json.dumps(sign)[1:-1] for sign in lacking), error.end


def discard_unwritten() -> None:
    """Drops output that could not be written. Python would write it again at exit, report that, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
