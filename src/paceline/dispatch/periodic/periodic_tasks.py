"""`Periodic`: work that is queued on a schedule, each tick once, however many workers run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.dispatch.model import EnqueueRequest, EnqueueResult
from paceline.dispatch.periodic.schedules import Schedule
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY, checked_lane, checked_priority
from paceline.durations import format_instant
from paceline.errors import Conflict, InvalidInput, NotFound, PacelineError

if TYPE_CHECKING:
    from paceline.dispatch.queue import DispatchQueue

log = logging.getLogger("paceline.dispatch")

POLL_SECONDS = 1.0
"""How soon a worker sees changes of other processes; ticks themselves are on time."""
LONGEST_PAUSE = 3600.0
LONGEST_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """What is queued, and when."""

    name: str
    item_type: str
    schedule: Schedule
    context_json: str
    enabled: bool
    ticked_until: datetime
    """Ticks up to this time are settled: queued, or skipped."""
    last_tick: datetime | None = None
    """The latest tick that was queued."""
    revision: int = 0
    """Grows with every write: a write based on an older revision is rejected."""
    lane: str = DEFAULT_LANE
    priority: int = DEFAULT_PRIORITY
    said: str | None = None
    """What the code said last, if it said something: as `form`."""

    def form(self) -> str:
        """What is queued and when, as one text to compare."""
        schedule = self.schedule
        calendar = None if schedule.calendar is None else schedule.calendar.to_json()
        every = None if schedule.every is None else schedule.every.total_seconds()
        when = schedule.cron, every, schedule.zone, calendar, schedule.catch_up.value
        return json.dumps([self.item_type, self.context_json, self.lane, self.priority, *when])

    def item(self, tick: datetime) -> EnqueueRequest:
        """The item of a tick. Its id is the tick's, so that the queue holds it once."""
        item_id = f"{self.name}@{format_instant(tick)}"
        return EnqueueRequest(self.item_type, item_id, self.context_json, tick, lane=self.lane, priority=self.priority)


class TaskChanges(Protocol):
    """Waits for changes of periodic tasks."""

    async def wait(self, timeout: float, *, every: float) -> None:
        """Returns after `timeout` seconds; or, if tasks may have changed, no more than `every` seconds after that."""
        ...


class PeriodicStore(Protocol):
    """Keeps periodic tasks. Time is the store's own clock unless `now` is given."""

    def changes(self) -> TaskChanges:
        """For one who reads the tasks now, and then after each wait."""
        ...

    async def tasks(self, *, now: datetime | None = None) -> tuple[list[PeriodicTask], datetime]:
        """All of them by name, and the time."""
        ...

    async def write(self, task: PeriodicTask, *, now: datetime | None = None) -> bool:
        """Writes a task if its revision is still the stored one, 0 for a new one."""
        ...

    async def delete(self, name: str) -> bool:
        """Removes a task; False if there was none. What it queued stays."""
        ...

    async def advance(
        self, task: PeriodicTask, ticks: Sequence[datetime], until: datetime, *, now: datetime | None = None
    ) -> bool:
        """Queues the items of these ticks and settles ticks up to `until`, in one transaction, if the task's revision
        is still the stored one."""
        ...


class PeriodicState(NamedTuple):
    """A periodic task and its next tick."""

    task: PeriodicTask
    next_tick: datetime | None
    """None while it is paused."""


class Periodic:
    """The periodic tasks of a queue.

    periodic = Periodic(queue)
    await periodic.put("report", "REPORT", Schedule.of(cron="0 16 * * MON-FRI", zone="Europe/Berlin"))
    """

    def __init__(self, queue: DispatchQueue) -> None:
        self._queue = queue
        self._store = queue.store.periodic

    async def list(self, *, now: datetime | None = None) -> list[PeriodicState]:
        """All of them, by name."""
        tasks, moment = await self._store.tasks(now=now)
        return [_state(task, moment) for task in tasks]

    async def show(self, name: str, *, now: datetime | None = None) -> PeriodicState:
        """One of them.

        Raises:
            NotFound: there is no such periodic task.
        """
        return _state(*await self._existing(name, now))

    async def put(
        self,
        name: str,
        item_type: str,
        schedule: Schedule,
        *,
        context: Any = None,
        enabled: bool | None = None,
        lane: str | None = None,
        priority: int | None = None,
        now: datetime | None = None,
    ) -> PeriodicState:
        """Makes or replaces a periodic task. Without `enabled`, one that exists stays as it is, paused or not, and so
        with `lane` and `priority`. With another schedule, or resumed, it begins with the first tick from now.

        Raises:
            InvalidInput: the name, the context, the lane or the priority is wrong.
            NotFound: there is no such item type.
            Conflict: it was changed concurrently.
        """
        checked_name(name)
        context_json = EnqueueRequest.of(item_type, "x", {} if context is None else context).context_json
        await self._queue.config(item_type)
        before, moment = await self._find(name, now)
        if enabled is None:
            enabled = before is None or before.enabled
        task = PeriodicTask(
            name,
            item_type,
            schedule,
            context_json,
            enabled,
            moment,
            lane=checked_lane(lane),
            priority=checked_priority(priority),
        )
        if before is not None:
            task = replace(
                task,
                lane=before.lane if lane is None else task.lane,
                priority=before.priority if priority is None else task.priority,
                said=before.said,
            )
            begins_anew = before.schedule != schedule or (enabled and not before.enabled)
            until = moment if begins_anew else before.ticked_until
            task = replace(task, ticked_until=until, last_tick=before.last_tick, revision=before.revision)
        if task != before and not await self._store.write(task, now=now):
            raise Conflict(f"the periodic task {name!r} was changed at the same time; look at it, and try again")
        return _state(task, moment)

    async def declare(
        self,
        name: str,
        item_type: str,
        schedule: Schedule,
        *,
        lane: str | None = None,
        priority: int | None = None,
        now: datetime | None = None,
    ) -> PeriodicState:
        """What the code says of a periodic task, as a worker does at its start. A task that is as the code said last
        follows it; one that somebody changed, or made, stays as it is.

        Raises:
            InvalidInput: the name, the lane or the priority is wrong.
            NotFound: there is no such item type.
            Conflict: it was changed concurrently.
        """
        checked_name(name)
        context = EnqueueRequest.of(item_type, "x", {}).context_json
        await self._queue.config(item_type)
        before, moment = await self._find(name, now)
        place: dict[str, Any] = {"lane": checked_lane(lane), "priority": checked_priority(priority)}
        task = PeriodicTask(name, item_type, schedule, context, True, moment, **place)
        task = replace(task, said=task.form())
        if before is not None:
            if before.form() != before.said:
                return _state(before, moment)
            until = before.ticked_until if before.schedule == schedule else moment
            task = replace(
                task,
                enabled=before.enabled,
                ticked_until=until,
                last_tick=before.last_tick,
                revision=before.revision,
            )
        if task != before and not await self._store.write(task, now=now):
            raise Conflict(f"the periodic task {name!r} was changed at the same time; look at it, and try again")
        return _state(task, moment)

    async def switch(self, name: str, *, enabled: bool, now: datetime | None = None) -> PeriodicState:
        """Pauses or resumes. Ticks of a pause are not caught up.

        Raises:
            NotFound: there is no such periodic task.
        """
        while True:
            task, moment = await self._existing(name, now)
            if task.enabled != enabled:
                until = moment if enabled else task.ticked_until
                changed = replace(task, enabled=enabled, ticked_until=until)
                if not await self._store.write(changed, now=now):
                    continue  # a tick came in between
                task = changed
            return _state(task, moment)

    async def delete(self, name: str) -> None:
        """Removes it. What it queued stays.

        Raises:
            NotFound: there is no such periodic task.
        """
        if not await self._store.delete(checked_name(name)):
            raise NotFound("periodic task", name)

    async def trigger(self, name: str, *, now: datetime | None = None) -> EnqueueResult:
        """Queues an item now, beside its ticks, also while it is paused. Within one second, the same one.

        Raises:
            NotFound: there is no such periodic task.
        """
        task, moment = await self._existing(name, now)
        second = moment.replace(microsecond=0)
        request = task.item(second)._replace(item_id=f"{name}@trigger-{format_instant(second)}")
        return (await self._queue.store.enqueue([request], now=now))[0]

    async def tick(self, *, now: datetime | None = None) -> timedelta | None:
        """Queues what is due, and returns how long it is to the next tick; None if there is none. Safe to call from any
        number of processes concurrently."""
        tasks, moment = await self._store.tasks(now=now)
        waits: list[timedelta] = []
        for task in tasks:
            if not task.enabled:
                continue
            try:
                ticks, until = task.schedule.due(task.ticked_until, moment)
                following = task.schedule.next_tick(until)
            except PacelineError as error:
                # For example, an extra that this process lacks. Another process may have it, and other tasks continue.
                log.error("the periodic task %s can't tick here: %s", task.name, error)
                continue
            if ticks and await self._store.advance(task, ticks, until, now=now):
                log.info("queued %d ticks of %s", len(ticks), task.name, extra={"item_type": task.item_type})
            if following is not None:
                waits.append(max(following - moment, timedelta(0)))
        return min(waits, default=None)

    async def _existing(self, name: str, now: datetime | None) -> tuple[PeriodicTask, datetime]:
        task, moment = await self._find(name, now)
        if task is None:
            raise NotFound("periodic task", name)
        return task, moment

    async def _find(self, name: str, now: datetime | None) -> tuple[PeriodicTask | None, datetime]:
        checked_name(name)
        tasks, moment = await self._store.tasks(now=now)
        return next((task for task in tasks if task.name == name), None), moment


@asynccontextmanager
async def ticking(queue: DispatchQueue) -> AsyncIterator[None]:
    """Queues the ticks of periodic tasks while the block runs; several processes may do so."""
    running = asyncio.create_task(_tick_on(Periodic(queue), queue.store.periodic.changes()))
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def _tick_on(periodic: Periodic, changes: TaskChanges) -> None:
    while True:
        try:
            following = await periodic.tick()
        except Exception as error:
            log.warning("periodic tasks: %s", error, exc_info=not isinstance(error, PacelineError))
            await asyncio.sleep(POLL_SECONDS)
            continue
        pause = LONGEST_PAUSE if following is None else following.total_seconds() + 0.001
        await changes.wait(min(pause, LONGEST_PAUSE), every=POLL_SECONDS)


def _state(task: PeriodicTask, now: datetime) -> PeriodicState:
    try:
        following = task.schedule.next_tick(max(now, task.ticked_until)) if task.enabled else None
    except PacelineError:
        following = None
    return PeriodicState(task, following)


def checked_name(name: object) -> str:
    """A name, or `InvalidInput`."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInput("name", f"must be 1 to {LONGEST_NAME} letters, digits, '_', '-' or '.'")
    return name
