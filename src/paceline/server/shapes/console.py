"""What the console's overview shows, on the wire."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import QueueStats
from paceline.server.rollups import model
from paceline.server.rollups.history import History
from paceline.server.shapes.dispatch import QueueStatsShown
from paceline.server.shapes.flow import FlowShown
from paceline.server.shapes.forecast import ForecastShown
from paceline.server.shapes.health import Check
from paceline.server.shapes.shape import Instant, Shape
from paceline.slots.forecast.heat_map import HeatMap

Line = Annotated[list[float | None], Field(description="One value per period; null where there is none.")]


class NumberShown(Shape):
    """How often something happens, in all processes."""

    name: str
    per_second: Annotated[float | None, Field(description="In the last whole minute.")]
    last_day: int
    minutes: Annotated[list[int], Field(description="The last quarter of an hour by the minute.")]


class QueueShown(QueueStatsShown):
    """A queue at a glance, and whether it is dispatched."""

    enabled: bool

    @classmethod
    def of_queue(cls, config: DispatchConfig, stats: QueueStats) -> Self:
        return cls(**QueueStatsShown.of_stats(stats).model_dump(), enabled=config.enabled)


class OverviewShown(Shape):
    """The whole installation at a glance. A part whose store does not answer is null."""

    version: Annotated[str, Field(description="For `Last-Event-ID` of the stream: what changed since.")]
    at: Instant
    checks: list[Check]
    numbers: list[NumberShown] | None
    queues: list[QueueShown] | None
    windows: Annotated[ForecastShown | None, Field(description="The next windows of the default config.")]
    flow: Annotated[
        FlowShown | None,
        Field(description="Of the queue with most that is late, or else waits; without minutes and marks."),
    ]


PARTS = ("checks", "numbers", "queues", "windows", "flow")
"""The parts of an overview; its version has one text per part, in this order, between dots."""
UNSTABLE = {"requested_time", "delays", "drain", "peaks", "windows", "last_window", "drained_by"}
"""Members of a forecast that change with every read, and are not shown."""


def versions_of(shown: OverviewShown) -> dict[str, str]:
    """For each part a short text that differs when the part does."""
    parts = shown.model_dump(mode="json", include=set(PARTS), exclude={"windows": UNSTABLE})
    return {part: hashlib.sha256(json.dumps(parts[part]).encode()).hexdigest()[:12] for part in PARTS}


class PartShown(Shape):
    """The response of a path."""

    status: int
    body: Annotated[Any, Field(description="The JSON of the answer, or a problem document.")]


class PageShown(Shape):
    """The responses of several paths at a time, by path."""

    version: Annotated[str, Field(description="For `lastEventId` of the stream of the same paths.")]
    at: Instant
    parts: dict[str, PartShown]


class ConfigLines(Shape):
    """Slots of a config over time."""

    config_name: str
    booked: Line
    refused: Line


class PlanLines(Shape):
    """Decisions by a plan over time."""

    plan: str
    allowed: Line
    denied: Line


class Ahead(Shape):
    """How many items still wait at a future time, if all run when they are due."""

    at: Annotated[int, Field(description="In seconds since 1970.")]
    items: int


class QueueLines(Shape):
    """Executions of an item type over time; durations are in seconds."""

    item_type: str
    completed: Line
    failed: Line
    dead_lettered: Line
    backlog: Line
    p50: Line
    p95: Line
    p99: Line
    ahead: list[Ahead]


class DownstreamLines(Shape):
    """Calls to the applications' downstreams over time, and their hard limits together; null if there are none."""

    calls: Line
    failed: Line
    limit_per_second: float | None


class HistoryShown(Shape):
    """What happened in all processes over time. Each line has a value per period; the last period is incomplete."""

    step_seconds: int
    times: Annotated[list[int], Field(description="The starts of the periods, in seconds since 1970.")]
    config_names: Annotated[
        list[str],
        Field(description="Configs that follow no template, also those with nothing to show; at most 200."),
    ]
    plan_names: list[str]
    item_types: list[str]
    configs: Annotated[
        list[ConfigLines],
        Field(description="Those that most was booked under, at most 50, and `(other)`; followers as their template."),
    ]
    plans: list[PlanLines]
    queues: list[QueueLines]
    downstream: DownstreamLines
    messages: Line

    @classmethod
    def of_history(
        cls,
        history: History,
        *,
        limit_per_second: float | None,
        ahead: Mapping[str, Sequence[tuple[int, int]]],
        config_names: Iterable[str],
        plan_names: Iterable[str],
        item_types: Iterable[str],
    ) -> Self:
        return cls(
            config_names=sorted(config_names),
            plan_names=sorted(plan_names),
            item_types=sorted(item_types),
            step_seconds=history.step,
            times=list(history.times),
            configs=_configs(history),
            plans=[
                PlanLines(
                    plan=name,
                    allowed=history.values(model.LIMITS_ALLOWED, name),
                    denied=history.values(model.LIMITS_DENIED, name),
                )
                for name in history.labels(model.LIMITS_ALLOWED, model.LIMITS_DENIED)
            ],
            queues=[
                _queue(history, name, ahead.get(name, ())) for name in sorted({*history.labels(*QUEUE_SERIES), *ahead})
            ],
            downstream=DownstreamLines(
                calls=history.sums(model.CALLS),
                failed=history.sums(model.CALLS_FAILED),
                limit_per_second=limit_per_second,
            ),
            messages=history.sums(model.MESSAGES_SENT),
        )


class HeatMapShown(Shape):
    """How full the hours of the next days are; both lists count from `start`, and end where too much would be read."""

    config_name: str
    start: Instant
    taken: list[int]
    capacity: Annotated[list[int], Field(description="How much may be booked in the hour; 0 if it is closed.")]

    @classmethod
    def of_heat_map(cls, heat_map: HeatMap) -> Self:
        return cls.of(heat_map, start=heat_map.start_ms)


QUEUE_SERIES = (
    model.ITEMS_COMPLETED,
    model.ITEMS_FAILED,
    model.ITEMS_DEAD,
    model.ITEMS_BACKLOG,
    model.ITEMS_SECONDS,
)


MAX_CONFIG_LINES = 50


def _configs(history: History) -> list[ConfigLines]:
    folded = history.folded(MAX_CONFIG_LINES, model.SLOTS_BOOKED, model.SLOTS_REFUSED)
    return [
        ConfigLines(
            config_name=name,
            booked=folded.values(model.SLOTS_BOOKED, name),
            refused=folded.values(model.SLOTS_REFUSED, name),
        )
        for name in folded.labels(model.SLOTS_BOOKED, model.SLOTS_REFUSED)
    ]


def _queue(history: History, item_type: str, ahead: Sequence[tuple[int, int]]) -> QueueLines:
    p50, p95, p99 = history.percentiles(model.ITEMS_SECONDS, item_type, 0.5, 0.95, 0.99)
    return QueueLines(
        item_type=item_type,
        completed=history.values(model.ITEMS_COMPLETED, item_type),
        failed=history.values(model.ITEMS_FAILED, item_type),
        dead_lettered=history.values(model.ITEMS_DEAD, item_type),
        backlog=history.measurements(model.ITEMS_BACKLOG, item_type),
        p50=p50,
        p95=p95,
        p99=p99,
        ahead=[Ahead(at=at, items=items) for at, items in ahead],
    )
