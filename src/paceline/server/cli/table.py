"""Tables that fit a terminal: the widest text is wrapped, times never are. Rows that are too wide nevertheless are
stacked: a line for each column, as in psql's expanded format."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

GAP = "  "
NARROWEST = len("DEAD_LETTER")
"""A column of text is not made narrower than this, the longest status; then the rows are stacked."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.]+Z)?")
_NUMBER = re.compile(r"-?[\d.,]+")
_HUMPS = re.compile(r"[A-Z]?[^A-Z]+|[A-Z]+")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """The lines of a table that is no wider than `width` characters, if the longest name and a time are not."""
    rows = [["".join(sign if sign.isprintable() else " " for sign in cell) for cell in row] for row in rows]
    cells = [[row[index] for row in rows] for index in range(len(columns))]
    widths = _fitted(columns, cells, width)
    if _total(widths) > width:
        yield from _stacked(columns, rows, width)
        return
    right = [bool(column) and all(_NUMBER.fullmatch(cell) or cell == "-" for cell in column) for column in cells]
    yield from _lines([_heading(name, wide) for name, wide in zip(columns, widths, strict=True)], widths, right)
    yield GAP.join("─" * wide for wide in widths)
    for row in rows:
        yield from _lines([_wrapped(cell, wide) for cell, wide in zip(row, widths, strict=True)], widths, right)


def _fitted(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide each column is: as wide as its longest text, less what the widest must lose.

    Headings are wrapped first, then sentences between their words, and last of all words.
    """
    widths = [max(map(len, [name, *column])) for name, column in zip(columns, cells, strict=True)]
    steps = [_floors(name, column) for name, column in zip(columns, cells, strict=True)]
    excess = _total(widths) - width
    for floors in zip(*steps, strict=True):
        while excess > 0 and (wider := [index for index, wide in enumerate(widths) if wide > floors[index]]):
            widths[max(wider, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _stacked(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A line for each cell, after its column's name; an empty line between rows. Without rows, the names alone."""
    if not rows:
        yield from textwrap.wrap(GAP.join(columns), width)
    names = max(map(len, columns))
    widths = [names, max(NARROWEST, width - names - len(GAP))]
    for index, row in enumerate(rows):
        if index:
            yield ""
        for name, cell in zip(columns, row, strict=True):
            yield from _lines([[name], _wrapped(cell, widths[1])], widths, [False, False])


def _floors(name: str, column: Sequence[str]) -> tuple[int, int, int]:
    """How narrow a column gets by wrapping its heading, then its sentences, then its words."""
    hump = max(map(len, _HUMPS.findall(name)), default=1)
    whole = max((len(cell) for cell in column if _TIME.fullmatch(cell) or _NUMBER.fullmatch(cell)), default=hump)
    cell = max(map(len, column), default=hump)
    word = max((len(word) for cell in column for word in cell.split()), default=hump)
    return max(hump, cell), max(hump, whole, word), max(hump, whole, min(NARROWEST, word))


def _heading(name: str, width: int) -> list[str]:
    """A column's name; one that is too long is split at its capitals: maxPerWindow."""
    lines = [""]
    for hump in _HUMPS.findall(name):
        if lines[-1] and len(lines[-1]) + len(hump) > width:
            lines.append("")
        lines[-1] += hump
    return lines


def _wrapped(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""]


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    for parts in zip_longest(*cells, fillvalue=""):
        aligned = zip(parts, widths, right, strict=True)
        yield GAP.join(part.rjust(wide) if last else part.ljust(wide) for part, wide, last in aligned).rstrip()
