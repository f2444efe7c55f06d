"""Measuring side by side on a machine that is never quiet.

A figure means nothing by itself here: a core's speed may double or halve within seconds. So contestants take turns,
round after round, and what is judged is a ratio between figures of the same round; the median over the rounds is
reported with its spread.
"""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Contestant = Callable[[], float]
"""Does its share of work once and returns operations per second (or any other figure to compare)."""


def rate(work: Callable[[], object], operations: int) -> float:
    """Operations per second of `work`, which performs `operations` of them."""
    started = time.perf_counter()
    work()
    return operations / (time.perf_counter() - started)


def race(contestants: Mapping[str, Contestant], *, repeats: int = 5, warm_up: bool = True) -> Race:
    """Lets all contestants take turns, `repeats` rounds, every other round in the opposite order."""
    names = list(contestants)
    if warm_up:
        for name in names:
            contestants[name]()
    figures: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(repeats):
        for name in names if round_number % 2 == 0 else reversed(names):
            gc.collect()
            figures[name].append(contestants[name]())
    return Race(figures)


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and the lowest and highest figure around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Race:
    """Every contestant's figures, round by round."""

    figures: Mapping[str, Sequence[float]]

    @classmethod
    def joined(cls, races: Sequence[Race]) -> Race:
        """The rounds of several races between the same contestants."""
        return cls({name: [figure for race in races for figure in race.figures[name]] for name in races[0].figures})

    def pooled(self, rounds: int) -> Race:
        """The same with every `rounds` rounds as one: the median of their figures. Rounds left over are dropped.

        Many short rounds, pooled, are steadier than few long ones: a burst of other work spoils only some of them."""
        return Race(
            {
                name: [
                    statistics.median(figures[start : start + rounds])
                    for start in range(0, len(figures) - rounds + 1, rounds)
                ]
                for name, figures in self.figures.items()
            }
        )

    def spread(self, name: str) -> Spread:
        return Spread.of(self.figures[name])

    def ratio(self, ours: str, *others: str, pooled: int = 1) -> Spread:
        """Our figure over the highest of `others` in the same round. The spread is that of the medians of every
        `pooled` rounds."""
        rounds = zip(self.figures[ours], *(self.figures[name] for name in others), strict=True)
        ratios = [mine / max(theirs) for mine, *theirs in rounds]
        medians = [statistics.median(ratios[start : start + pooled]) for start in range(0, len(ratios), pooled)]
        return Spread(statistics.median(ratios), min(medians), max(medians))

    def best(self, *names: str) -> str:
        """The name with the highest median."""
        return max(names, key=lambda name: self.spread(name).median)


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio has to reach: at least `least`, at most `most`, or nothing in particular."""

    least: float | None = None
    most: float | None = None

    def met(self, ratio: float) -> bool:
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most)

    def __str__(self) -> str:
        bounds = [f"≥ {self.least:g}"] if self.least is not None else []
        bounds += [f"≤ {self.most:g}"] if self.most is not None else []
        return " and ".join(bounds) or "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what was measured, our figure, whose figure it is compared with, and the ratio judged."""

    work: str
    ours: str
    against: str
    ratio: Spread
    target: Target = Target()

    @property
    def met(self) -> bool:
        return self.target.met(self.ratio.median)


@dataclass(slots=True)
class Table:
    """Rows as they are measured; each is printed at once, so that a long run can be watched."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """What is stored beside the rows, as JSON, for a calculation to go on from."""

    def __post_init__(self) -> None:
        print(f"\n## {self.title}\n")
        print(_line("work", "paceline", "against", "ratio (spread)", "target", ""))
        print(_line(*("-" * width for width in _WIDTHS)))

    def add(self, row: Row) -> None:
        self.rows.append(row)
        verdict = "PASS" if row.met else "MISS"
        if row.target == Target():
            verdict = ""
        print(_line(row.work, row.ours, row.against, str(row.ratio), str(row.target), verdict), flush=True)

    def note(self, text: str) -> None:
        """A remark under the table: what every contestant reached, sizes, circumstances."""
        self.notes.append(text)

    def close(self) -> None:
        for text in self.notes:
            print(f"  {text}")

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if not row.met]


def per_second(figure: float) -> str:
    """`12.3k/s`"""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if figure >= size:
            return f"{figure / size:.3g}{unit}/s"
    return f"{figure:.3g}/s"


def peak_mib(pid: int) -> float | None:
    """The peak memory of a process that runs; None once it has ended.

    Not by `ru_maxrss`: on Linux a child's counts from what its parent used when it was started.
    """
    return _memory_mib(pid, "VmHWM")


def resident_mib(pid: int) -> float | None:
    """The memory of a process that runs; None once it has ended."""
    return _memory_mib(pid, "VmRSS")


def _memory_mib(pid: int, field: str) -> float | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    memory = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return None if memory is None else int(memory[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process that runs, all its threads together, in nanoseconds' precision.

    By its clock, as `clock_getcpuclockid(3)` names it: `/proc` counts in hundredths of a second.
    """
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


_CPU_CLOCK = 2
"""In the name of a process's clock: the scheduler's, not that of ticks."""


def summary(work: str, race: Race) -> str:
    """All contestants' medians in one line."""
    return f"{work}: " + ", ".join(f"{name} {per_second(race.spread(name).median)}" for name in race.figures)


_WIDTHS = (44, 12, 34, 20, 14, 4)


def _line(*cells: str) -> str:
    return " | ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
