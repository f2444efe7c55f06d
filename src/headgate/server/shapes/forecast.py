"""A forecast on the wire."""

from __future__ import annotations

from datetime import datetime

from headgate.durations import format_instant
from headgate.server.shapes.shape import Shape
from headgate.slots import Forecast
from headgate.slots.forecast import WindowFill


class Window(Shape):
    """One window of a forecast."""

    start: str
    taken: int
    added: int
    limit: int

    @classmethod
    def of(cls, fill: WindowFill) -> Window:
        return cls(start=format_instant(fill.start), taken=fill.taken, added=fill.added, limit=fill.limit)


class Peak(Shape):
    """The most events in any sliding span, by spread."""

    spread: str
    per_second: int
    per_100_ms: int


class ForecastShown(Shape):
    """When a backlog would run, without booking it."""

    config_name: str
    config_version: int
    events: int
    requested_time: str
    first_window: str | None
    last_window: str | None
    drained_by: str | None
    placed: int
    refused: int
    window_count: int
    windows: list[Window]
    next_windows: list[Window]
    peaks: list[Peak]

    @classmethod
    def of(cls, forecast: Forecast) -> ForecastShown:
        return cls(
            config_name=forecast.config_name,
            config_version=forecast.config_version,
            events=forecast.events,
            requested_time=format_instant(forecast.requested_time),
            first_window=_instant(forecast.first_window),
            last_window=_instant(forecast.last_window),
            drained_by=_instant(forecast.drained_by),
            placed=forecast.placed,
            refused=forecast.refused,
            window_count=forecast.window_count,
            windows=[Window.of(fill) for fill in forecast.windows],
            next_windows=[Window.of(fill) for fill in forecast.next_windows],
            peaks=[
                Peak(spread=peaks.spread.value, per_second=peaks.per_second, per_100_ms=peaks.per_100_ms)
                for peaks in forecast.peaks
            ],
        )


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else format_instant(moment)
