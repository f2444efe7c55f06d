"""Rollups as time series, and recent rates. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.server.rollups import model
from paceline.server.rollups.model import COARSE, MINUTE, OTHER, Counts, Key, Period, percentile

SETTLED_SECONDS = 10
"""Seconds after the end of a minute until all processes have written it."""
RANGES = {"PT15M": 900, "PT6H": 21_600, "P1D": 86_400, "P7D": 604_800}
"""The ranges of time series, in seconds."""


def step_of(seconds: int) -> int:
    """The length of the periods that a range is shown in: a few hundred of them at most, or a week's ten minutes."""
    return MINUTE if seconds <= RANGES["PT6H"] else COARSE


@dataclass(frozen=True, slots=True)
class History:
    """Counts over time: one value per period."""

    step: int
    times: Sequence[int]
    """The starts of the periods, in seconds since the epoch."""
    periods: Mapping[Period, Counts]

    @classmethod
    def of(cls, periods: Mapping[Period, Counts], step: int, seconds: int, now: float) -> History:
        """The last so many seconds before `now`. The present period is the last one."""
        last = Period.of(step, now).start
        return cls(step, range(last - seconds + step, last + step, step), periods)

    def only(self, counted: Callable[[Key], bool]) -> History:
        """What is counted by these keys."""
        periods = {
            period: {key: value for key, value in counts.items() if counted(key)}
            for period, counts in self.periods.items()
        }
        return History(self.step, self.times, periods)

    def labels(self, *series: str) -> list[str]:
        """The labels that these series have counts for."""
        return sorted({key.label for counts in self._counts() for key in counts if key.series in series})

    def values(self, series: str, label: str) -> list[int]:
        """The counts; 0 where there were none."""
        key = Key(series, label)
        return [counts.get(key, 0) for counts in self._counts()]

    def measurements(self, series: str, label: str) -> list[int | None]:
        """A gauge's values; None where there was no measurement."""
        key = Key(series, label)
        return [counts.get(key) for counts in self._counts()]

    def folded(self, most: int, *series: str) -> History:
        """These series, of so many labels: those that were counted most, and `OTHER` for all others together."""
        totals = Counter[str]()
        for counts in self._counts():
            for key, value in counts.items():
                if key.series in series:
                    totals[key.label] += value
        kept = {label for label, _ in totals.most_common(most)}
        periods: dict[Period, Counts] = {}
        for period, counts in self.periods.items():
            named = (
                (key if key.label in kept else key._replace(label=OTHER), value)
                for key, value in counts.items()
                if key.series in series
            )
            folded = periods.setdefault(period, {})
            for key, value in named:
                folded[key] = folded.get(key, 0) + value
        return replace(self, periods=periods)

    def sums(self, series: str) -> list[int]:
        """The counts of all labels together."""
        return [sum(value for key, value in counts.items() if key.series == series) for counts in self._counts()]

    def percentiles(self, series: str, label: str, *shares: float) -> list[list[float | None]]:
        """For each share a line of durations, in seconds; None where there were none."""
        buckets = [
            {key.bucket: value for key, value in counts.items() if key.series == series and key.label == label}
            for counts in self._counts()
        ]
        return [[percentile(counts, share) for counts in buckets] for share in shares]

    def _counts(self) -> Iterator[Counts]:
        return (self.periods.get(Period(self.step, start), {}) for start in self.times)


NUMBERS: Mapping[str, tuple[str, ...]] = {
    "slotsBooked": (model.SLOTS_BOOKED,),
    "slotsRefused": (model.SLOTS_REFUSED,),
    "limitDecisions": (model.LIMITS_ALLOWED, model.LIMITS_DENIED),
    "limitDenials": (model.LIMITS_DENIED,),
    "executions": (model.ITEMS_COMPLETED, model.ITEMS_FAILED),
    "failures": (model.ITEMS_FAILED,),
    "deadLetters": (model.ITEMS_DEAD,),
    "downstreamCalls": (model.CALLS,),
    "messages": (model.MESSAGES_SENT, model.MESSAGES_REFUSED),
}
"""The numbers at a glance, by name, and the series whose sum each one is."""


@dataclass(frozen=True, slots=True)
class Number:
    """How often something happens."""

    name: str
    per_second: float | None
    """In the last minute that all processes have written; None before there is one."""
    last_day: int
    minutes: Sequence[int]
    """The last 15 minutes, one value each; the last one is incomplete."""


def numbers(day: Mapping[Period, Counts], minutes: Mapping[Period, Counts], now: float) -> list[Number]:
    """The numbers at a glance: from the periods of the last day, and the minutes of the last quarter of an hour."""
    last_day = History.of(day, COARSE, RANGES["P1D"], now)
    recent = History.of(minutes, MINUTE, RANGES["PT15M"], now)
    settled = Period.of(MINUTE, now - SETTLED_SECONDS).start - MINUTE
    index = recent.times.index(settled)
    # A new installation has no complete minute; the current one is better than nothing.
    began = next((start for start in recent.times if recent.periods.get(Period(MINUTE, start))), None)
    shown = []
    for name, series in NUMBERS.items():
        line = [sum(values) for values in zip(*(recent.sums(one) for one in series), strict=True)]
        total = sum(sum(last_day.sums(one)) for one in series)
        rate: float | None
        if began is None:
            rate = 0.0 if total else None
        elif began <= settled:
            rate = line[index] / MINUTE
        else:
            rate = sum(line) / max(1.0, now - began)
        shown.append(Number(name, rate, total, line))
    return shown
