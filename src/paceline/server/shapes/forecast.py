"""A forecast on the wire."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from paceline.server.shapes.shape import Instant, Shape
from paceline.slots.forecast.forecast import Forecast


class Window(Shape):
    """One window of a forecast."""

    start: Instant
    taken: int
    added: int
    limit: int


class Peak(Shape):
    """The most events in any sliding span, by spread."""

    spread: str
    per_second: int
    per_100_ms: int


class Delay(Shape):
    """Percentiles of the delay after the requested time, in milliseconds."""

    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


class Left(Shape):
    """How many events are still to run at a time."""

    at: Instant
    events: int


class ForecastShown(Shape):
    """When a backlog would run, without booking it. `configNames` is there if it is under several configs; `windows`
    and `nextWindows` are those of the first."""

    config_name: str
    config_version: int
    events: int
    requested_time: Instant
    first_window: Instant | None
    last_window: Instant | None
    drained_by: Instant | None
    placed: int
    refused: int
    window_count: int
    windows: list[Window]
    next_windows: list[Window]
    peaks: list[Peak]
    delays: Delay | None
    drain: list[Left] = Field(description="A line through these points, from the first window to the last.")
    config_names: list[str] = Field(default_factory=list)

    @classmethod
    def of_forecast(cls, forecast: Forecast) -> Self:
        shape = cls.of(forecast, drain=[Left.of(at=at, events=left) for at, left in forecast.drain])
        if not forecast.config_names:
            shape.model_fields_set.discard("config_names")
        return shape
