"""A forecast on the wire."""

from __future__ import annotations

from headgate.server.shapes.shape import Instant, Shape


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


class ForecastShown(Shape):
    """When a backlog would run, without booking it."""

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
