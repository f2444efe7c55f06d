"""Does a limit hold in every second for a system that takes so many, and which limit would?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.durations import format_instant
from paceline.slots import Forecast

Try = Callable[[Mapping[str, Any]], Awaitable[Forecast]]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a forecast means for a system that takes `tps` calls in any second."""

    tps: int
    worst: int
    """The most events in any second, as the forecast drew them."""
    better: Mapping[str, Any]
    """A limit, window and spread that would hold; empty if none is needed, or none was found."""
    then: Forecast | None
    """The forecast with it."""

    @property
    def holds(self) -> bool:
        return self.worst <= self.tps

    def dump(self) -> dict[str, Any]:
        """For machines."""
        shown: dict[str, Any] = {"takes": self.tps, "worstSecond": self.worst, "holds": self.holds}
        if self.then is not None and self.then.drained_by is not None:
            shown["wouldHold"] = dict(self.better) | {"drainedBy": format_instant(self.then.drained_by)}
        return shown

    def lines(self) -> list[str]:
        """For people."""
        if self.holds:
            lines = [f"holds: {self.worst} in the worst second, for a system that takes {self.tps}"]
        elif self.then is None or self.then.drained_by is None:
            lines = [
                f"does not hold: {self.worst} in the worst second, {self.tps} are taken, and no limit of one second"
                " makes it hold: look at what is booked already"
            ]
        else:
            lines = [
                f"does not hold: {self.worst} in the worst second, {self.tps} are taken",
                "this would hold: --max {maxPerWindow} --window 1s --spread {spread}; all by ".format(**self.better)
                + format_instant(self.then.drained_by),
            ]
        return [
            *lines,
            f'late and repeated calls come on top: a Downstream with rate="{self.tps}/second" holds them too',
        ]


async def advise(drawn: Forecast, tps: int, attempt: Try) -> Advice:
    """Tries limits of one second: all that the system takes, evenly; then half of it, since no second meets more than
    two windows."""
    worst = _worst(drawn)
    if worst > tps:
        for most, spread in ((tps, "even"), (tps // 2, "jitter")):
            if most:
                then = await attempt({"max_per_window": most, "window": "PT1S", "spread": spread})
                if _worst(then) <= tps:
                    return Advice(tps, worst, {"maxPerWindow": most, "window": "PT1S", "spread": spread}, then)
    return Advice(tps, worst, {}, None)


def _worst(drawn: Forecast) -> int:
    """With the config's own spread."""
    return drawn.peaks[0].per_second if drawn.peaks else 0
