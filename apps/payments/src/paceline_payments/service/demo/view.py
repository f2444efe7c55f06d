"""The progress of a demo run: a live picture on a terminal, a plain line every few seconds otherwise."""

from __future__ import annotations

import shutil
import time
from bisect import bisect_left
from collections import Counter
from typing import Protocol, Self

from paceline.dispatch.model import QueueStats
from paceline.dispatch.status import Status
from paceline.server.cli.screen import Screen, coloured, panel
from paceline.server.cli.terminal import print_status
from paceline_payments.downstream.simulator import Simulator, peak_per_second
from paceline_payments.service.demo.report import Plan

WINDOW = 4
SHOWN_WINDOWS = 12
BAR = 40
WIDTH = 76
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_SECONDS = 60


class View(Protocol):
    """Shows a run."""

    pause: float

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, stats: QueueStats) -> None:
        """Shows the present state."""
        ...

    def announce(self, text: str) -> None:
        """Shows an event of the run."""
        ...


class PlainView:
    """A line every five seconds."""

    pause = 0.5
    EVERY = 5.0

    def __init__(self, plan: Plan, bank: Simulator) -> None:
        self._plan = plan
        self._bank = bank
        self._said = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def announce(self, text: str) -> None:
        print_status(text)

    def show(self, stats: QueueStats) -> None:
        now = time.monotonic()
        if now - self._said < self.EVERY:
            return
        self._said = now
        done, rate = len(self._bank.executed), _last_second(self._bank)
        waiting = stats.depth.get(Status.READY, 0)
        print_status(
            f"{done} of {self._plan.payments} executed, {rate} calls in the last second, {waiting} in the queue"
        )


class LiveView:
    """Windows filling and emptying, the queue, and the bank's second."""

    pause = 0.25

    def __init__(self, plan: Plan, bank: Simulator) -> None:
        self._plan = plan
        self._bank = bank
        self._screen = Screen()
        self._counted = 0
        self._executed: Counter[int] = Counter()
        self._seconds: Counter[int] = Counter()
        self._peak = 0
        self._events: list[str] = []

    def __enter__(self) -> Self:
        self._screen.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._screen.__exit__(*error)

    def announce(self, text: str) -> None:
        self._events.append(f"{time.strftime('%H:%M:%S')} {text}")

    def show(self, stats: QueueStats) -> None:
        self._count()
        width = min(WIDTH, shutil.get_terminal_size().columns)
        panels = [self._windows(), self._queue(stats), self._downstream()]
        if self._events:
            panels.append(("what goes wrong", self._events))
        self._screen.show([line for title, lines in panels for line in panel(title, lines, width)])

    def _count(self) -> None:
        calls, first = self._bank.calls, self._counted
        if first < len(calls):
            # As the report counts it: in any sliding second, also one between two looks.
            since = bisect_left(calls, calls[first].at_us - 1_000_000, key=lambda call: call.at_us)
            self._peak = max(self._peak, peak_per_second(call.at_us for call in calls[since:]))
        for call in calls[first:]:
            self._seconds[call.at_us // 1_000_000] += 1
            if call.executed:
                self._executed[int(self._plan.scheduled.get(call.payment_id, 0.0) // WINDOW)] += 1
        self._counted = len(calls)

    def _windows(self) -> tuple[str, list[str]]:
        planned = Counter(int(at // WINDOW) for at in self._plan.scheduled.values())
        lines = []
        unfinished = [window for window in sorted(planned) if self._executed[window] < planned[window]]
        first = max(0, (unfinished[0] if unfinished else max(planned, default=0)) - 2)
        highest = max(planned.values(), default=1)
        for window in [window for window in sorted(planned) if window >= first][:SHOWN_WINDOWS]:
            done = round(BAR * self._executed[window] / highest)
            booked = round(BAR * planned[window] / highest) - done
            bar = coloured("█" * done, "green") + coloured("░" * max(booked, 0), "blue")
            pad = " " * (BAR - done - max(booked, 0))
            lines.append(f"+{window * WINDOW:>4} s {bar}{pad} {self._executed[window]}/{planned[window]}")
        return f"windows of {WINDOW} s after {self._plan.at:%H:%M:%S} (executed / booked)", lines

    def _queue(self, stats: QueueStats) -> tuple[str, list[str]]:
        shown = "   ".join(f"{status.value} {count}" for status, count in stats.depth.items() if count)
        return "queue", [shown or "empty"]

    def _downstream(self) -> tuple[str, list[str]]:
        now = time.monotonic_ns() // 1_000_000_000
        recent = [self._seconds[second] for second in range(now - SPARK_SECONDS, now)]
        top = max(self._plan.tps, *recent)
        sparks = "".join(SPARKS[min(len(SPARKS) - 1, count * len(SPARKS) // (top + 1))] for count in recent)
        rate = f"{_last_second(self._bank):>4} calls in the last second, at most {self._peak} of {self._plan.tps}"
        done = f"{len(self._bank.executed)} of {self._plan.payments} payments executed"
        return "downstream", [coloured(sparks, "cyan"), rate, done]


def _last_second(bank: Simulator) -> int:
    since = time.monotonic_ns() // 1000 - 1_000_000
    return len(bank.calls) - bisect_left(bank.calls, since, key=lambda call: call.at_us)
