"""The progress of long work: a bar with percent, rate and time left on a terminal, a line every few seconds elsewhere.

Both go to standard error, so that the result on standard output can be redirected.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from typing import IO, Self

from paceline.server.cli.terminal import print_status

PLAIN_EVERY = 5.0
DRAWN_EVERY = 0.1
BAR = 30
CLEAR = "\r\x1b[K"


class Meter:
    """Shows the progress through a file's lines. A pipe has no size, so it has neither percent nor time left."""

    def __init__(self, what: str, size: int | None, lines: int = 0, position: int = 0) -> None:
        """`lines` and `position` (in bytes) are done already, by an earlier run."""
        self._what = what
        self._size = size
        self._first, self._first_position = lines, position
        self._lines, self._position = lines, position
        self._live = sys.stderr.isatty()
        self._started = self._shown = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Self:
        if self._live:
            self._draw(self._started)
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def move(self, lines: int, position: int) -> None:
        """Reports that the file is done up to here."""
        self._lines, self._position = lines, position
        now = time.monotonic()
        if self._live and (now - self._shown >= DRAWN_EVERY or not self._drawn):
            self._shown = now
            self._draw(now)
        elif not self._live and now - self._shown >= PLAIN_EVERY:
            self._shown = now
            left = self._left(now)
            about = "" if left is None else f", {self._percent():.0f} %, about {left:.0f} s left"
            print_status(f"{self._what}: {lines} lines, {self._rate(now):.0f}/s{about}")

    def clear(self) -> None:
        """Removes the bar, so that something else can be written; the next `move` draws it again."""
        if self._drawn:
            self._drawn = False
            sys.stderr.write(CLEAR)
            sys.stderr.flush()

    def _draw(self, now: float) -> None:
        parts = [f"{self._lines:,}", f"{self._rate(now):,.0f}/s"]
        if self._size is not None:
            percent = self._percent()
            filled = round(BAR * percent / 100)
            parts.insert(0, f"{'━' * filled}{'╌' * (BAR - filled)} {percent:3.0f} %")
        left = self._left(now)
        if left is not None:
            minutes, seconds = divmod(round(left), 60)
            parts.append(f"{minutes}:{seconds:02d} left")
        # A line that wraps could not be removed again.
        sys.stderr.write(CLEAR + f"{self._what} {'  '.join(parts)}"[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
        self._drawn = True

    def _rate(self, now: float) -> float:
        return (self._lines - self._first) / max(now - self._started, 1e-9)

    def _percent(self) -> float:
        return 100.0 if not self._size else min(100.0, 100 * self._position / self._size)

    def _left(self, now: float) -> float | None:
        done = self._position - self._first_position
        if self._size is None or not done:
            return None
        return max(0.0, (self._size - self._position) * (now - self._started) / done)


def size_of(file: IO[bytes]) -> int | None:
    """A file's length in bytes; None if it is no regular file."""
    facts = os.fstat(file.fileno())
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None
