"""Periodic tasks on the wire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, WithJsonSchema

from paceline.dispatch.periodic.periodic_tasks import PeriodicState
from paceline.dispatch.periodic.schedules import CatchUp, Schedule
from paceline.durations import format_duration
from paceline.server.shapes.config import Calendar
from paceline.server.shapes.dispatch import ITEM_TYPE
from paceline.server.shapes.members import DURATION
from paceline.server.shapes.shape import Expects, Instant, InvalidMember, Shape

NAME: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$", "example": "report"}
_CRON = {"type": "string", "minLength": 6, "maxLength": 255, "example": "0 16 * * MON-FRI"}


class PeriodicRequest(Shape):
    """What is queued, and when: `cron` or `every`. Without `enabled`, a task that is paused stays paused."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["cron"]}, {"required": ["every"]}]})

    # `Schedule` checks the values.
    item_type: Annotated[str, WithJsonSchema(ITEM_TYPE), Expects("the name of an item type")]
    cron: Annotated[Any, WithJsonSchema(_CRON)] = None
    every: Annotated[Any, WithJsonSchema(DURATION | {"example": "PT2S"})] = None
    zone: Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1, "example": "Europe/Berlin"})] = None
    calendar: Annotated[
        dict[str, Any] | None,
        WithJsonSchema(Calendar.request_schema() | {"type": ["object", "null"]}),
        Expects("an object"),
    ] = None
    catch_up: Annotated[Any, WithJsonSchema({"enum": list(CatchUp)})] = CatchUp.SKIP
    context: Annotated[Any, WithJsonSchema({"description": "What each execution is given; left out, {}."})] = None
    enabled: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None
    lane: Annotated[Any, WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})] = None
    priority: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 9})] = None

    def schedule(self) -> Schedule:
        """The schedule it describes.

        Raises:
            InvalidInput: a member is wrong.
        """
        for member in ("cron", "every", "zone", "enabled", "lane", "priority"):
            if member in self.model_fields_set and getattr(self, member) is None:
                raise InvalidMember(member, "must not be null; leave it out")
        if self.enabled is not None and not isinstance(self.enabled, bool):
            raise InvalidMember("enabled", "must be true or false")
        if self.every is not None and not isinstance(self.every, str):
            raise InvalidMember("every", "must be a duration such as PT2S")
        return Schedule.of(
            cron=self.cron, every=self.every, zone=self.zone, calendar=self.calendar, catch_up=self.catch_up
        )


class PeriodicShown(Shape):
    """A periodic task."""

    name: str
    item_type: str
    cron: str | None
    every: str | None
    zone: str
    calendar: Calendar | None
    catch_up: str
    context: Any
    enabled: bool
    lane: str
    priority: int
    next_tick: Instant | None
    last_tick: Instant | None

    @classmethod
    def of_state(cls, state: PeriodicState) -> Self:
        schedule = state.task.schedule
        return cls.of(
            state.task,
            schedule,
            every=None if schedule.every is None else format_duration(schedule.every),
            calendar=None if schedule.calendar is None else schedule.calendar.to_json(),
            context=json.loads(state.task.context_json),
            next_tick=state.next_tick,
        )


class PeriodicTasks(Shape):
    """Every periodic task, by name."""

    periodic: list[PeriodicShown]

    @classmethod
    def of_states(cls, states: Sequence[PeriodicState]) -> Self:
        return cls(periodic=[PeriodicShown.of_state(state) for state in states])


class Triggered(Shape):
    """The item that was queued."""

    item_type: str
    item_id: str
    existing: bool
