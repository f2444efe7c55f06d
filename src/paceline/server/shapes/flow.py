"""The flow of work on the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from paceline.server.access.ports import AuditEntry
from paceline.server.flow import Flow, LimitBy, Line
from paceline.server.rollups.flows import Minutes
from paceline.server.shapes.shape import Instant, Shape

Counts = Annotated[list[int], Field(description="One value per second.")]
Measured = Annotated[list[int | None], Field(description="One value per minute; null where nothing was measured.")]
PAST = ("arrived", "begun", "done", "failed", "waited", "peaks")


class SecondsShown(Shape):
    """The last quarter of an hour per second; the last second is incomplete."""

    start: Annotated[int, Field(description="The first second, in seconds since 1970.")]
    arrived: Counts
    begun: Counts
    done: Counts
    failed: Counts
    waited: Annotated[list[int], Field(description="How many waited at the end of each second.")]
    peaks: Annotated[list[int], Field(description="The most that began in a sliding second that ended in each second.")]


class MinutesShown(Shape):
    """The last 24 hours per minute; the last minute is incomplete."""

    start: int
    arrived: Measured
    begun: Measured
    done: Measured
    failed: Measured
    waited: Measured
    peaks: Measured
    late: Measured
    unknown: Measured
    dead: Measured


class DueShown(Shape):
    """What waits, by the second of the next quarter of an hour in which it is due; without what is late."""

    start: int
    counts: Counts


class MarkShown(Shape):
    """A change of this flow's settings, and who made it."""

    at: Instant
    who: str
    what: str


class FlowNow(Shape):
    """A flow at one moment."""

    name: str
    at: Instant
    waiting: Annotated[int, Field(description="What has not begun; of a config, its slots of the next 24 hours.")]
    held: Annotated[int, Field(description="What of it a worker holds.")]
    late: Annotated[int, Field(description="What of it is due.")]
    late_secs: Annotated[float | None, Field(description="How long the first of it has been due.")]
    running: int
    unknown: int
    dead: int
    arrived: Annotated[int, Field(description="In the last minute, as `begun`, `done` and `failed`.")]
    begun: int
    done: int
    failed: int
    limit: Annotated[float | None, Field(description="How many may begin in a second; null if no limit is known here.")]
    limit_by: Annotated[LimitBy | None, Field(description="What sets the limit.")]
    peak: Annotated[int, Field(description="The most that began in any sliding second.")]
    done_by: Annotated[
        Instant | None,
        Field(
            description="When the last of what is due within a day will have begun; null if nothing moves, or paused."
        ),
    ]

    @classmethod
    def of_flow(cls, flow: Flow) -> Self:
        """The flow without its lines."""
        return cls(**_now(flow))


class FlowShown(FlowNow):
    """A flow now, in the last quarter of an hour per second, in the last 24 hours per minute, and ahead."""

    seconds: SecondsShown
    minutes: Annotated[MinutesShown | None, Field(description="Null for a config: its slots tell it.")]
    due: DueShown
    marks: list[MarkShown]

    @classmethod
    def of_all(cls, flow: Flow, minutes: Minutes | None, marks: Sequence[AuditEntry]) -> Self:
        """The flow with its lines; its peak is that of the day."""
        now = _now(flow)
        if minutes is not None:
            now["peak"] = max(flow.peak, minutes.peak)
        return cls(
            **now,
            seconds=SecondsShown(start=flow.arrived.start, **{name: list(getattr(flow, name).counts) for name in PAST}),
            minutes=None if minutes is None else MinutesShown(start=minutes.start, **minutes.lines),
            due=DueShown(start=flow.due.start, counts=list(flow.due.counts)),
            marks=[MarkShown(at=entry.at, who=entry.caller, what=_words(entry)) for entry in marks],
        )


def _words(entry: AuditEntry) -> str:
    """A change in words: `rate 2/second`, `paused`, `re-planned earlier`. What is no change of settings is told as it
    was asked for."""
    members = members_of(entry)
    members = {name: value for name, value in members.items() if name not in ("configName", "dryRun")}
    if not members:
        return f"{entry.method} {entry.path} {entry.detail or ''}".strip()
    return ", ".join(_change(name, value) for name, value in members.items())


def _change(name: str, value: object) -> str:
    if name == "enabled":
        return "resumed" if value else "paused"
    if name == "direction":
        return f"re-planned {'later' if value == 'spread' else value}"
    words = re.sub("([A-Z])", lambda found: f" {found[1].lower()}", name)
    return f"no {words}" if value is None else f"{words} {value if isinstance(value, str) else json.dumps(value)}"


def members_of(entry: AuditEntry) -> dict[str, object]:
    """The JSON object that a change was asked for with; empty if it was none, or is cut off."""
    try:
        members = json.loads(entry.detail or "")
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def _now(flow: Flow) -> dict[str, object]:
    names = (
        "name",
        "at",
        "waiting",
        "held",
        "late",
        "running",
        "unknown",
        "dead",
        "limit",
        "limit_by",
        "peak",
        "done_by",
    )
    totals = {name: _last_minute(getattr(flow, name)) for name in ("arrived", "begun", "done", "failed")}
    late = None if flow.late_by is None else flow.late_by.total_seconds()
    return {name: getattr(flow, name) for name in names} | totals | {"late_secs": late}


def _last_minute(line: Line) -> int:
    """The last sixty whole seconds."""
    return sum(line.counts[-61:-1])


class FlowsShown(Shape):
    """Every queue's flow now."""

    flows: list[FlowNow]
