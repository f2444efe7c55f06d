"""A few lines on a terminal that are redrawn, with plain ANSI sequences."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Self

_STYLE = re.compile(r"\x1b\[[\d;]*m")
COLOURS = {"green": "32", "red": "31", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}


class Screen:
    """Lines on standard error; cleared when the block ends, so that a report can take their place."""

    def __init__(self) -> None:
        self._height = 0

    def __enter__(self) -> Self:
        sys.stderr.write("\x1b[?25l")  # hide the cursor
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.write(f"{self._start()}\x1b[J\x1b[?25h")
        sys.stderr.flush()

    def show(self, lines: Sequence[str]) -> None:
        """Redraws the lines; those beyond the terminal's height are left out."""
        lines = lines[: shutil.get_terminal_size().lines - 1]
        # Each line is overwritten and its rest cleared, rather than all cleared first, to avoid flicker.
        sys.stderr.write(self._start() + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stderr.flush()
        self._height = len(lines)

    def _start(self) -> str:
        return f"\x1b[{self._height}F" if self._height else "\r"


def coloured(text: str, colour: str) -> str:
    """The text in a colour, unless the user wants none (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") or not text else f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def panel(title: str, lines: Sequence[str], width: int) -> list[str]:
    """Lines in a frame with a title. Longer lines are cut, losing their colour."""
    inner = width - 4
    title = title[: inner - 2]
    framed = [f"╭─ {coloured(title, 'bold')} {'─' * (inner - len(title) - 1)}╮"]
    for line in lines:
        bare = _STYLE.sub("", line)
        if len(bare) > inner:
            line = bare = bare[:inner]
        framed.append(f"│ {line}{' ' * (inner - len(bare))} │")
    return [*framed, f"╰{'─' * (inner + 2)}╯"]
