"""The queues and periodic tasks of some names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import EnqueueRequest, EnqueueResult
from paceline.dispatch.periodic.periodic_tasks import Periodic, PeriodicState
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.worker.heartbeats import Worker
from paceline.errors import NotFound
from paceline.server.access.names import Names
from paceline.server.bound.calls import offer, refuse_others
from paceline.server.bound.slots import BoundSlots

OF_AN_ITEM_TYPE = (
    "audit",
    "cancel",
    "check_known",
    "config",
    "count",
    "discard",
    "error_groups",
    "find",
    "lanes",
    "list",
    "pause",
    "preview",
    "progress_of",
    "requeue",
    "reschedule",
    "resolve",
    "resume",
    "show",
    "stats",
)
"""The methods that are about the item type of their first argument, and nothing else."""


class BoundQueue(DispatchQueue):
    """A `DispatchQueue` that knows only item types of some names."""

    def __init__(self, queue: DispatchQueue, slots: BoundSlots, names: Names) -> None:
        self._original = queue
        self._slots = slots
        self._names = names

    async def configs(self) -> list[DispatchConfig]:
        return [config for config in await self._original.configs() if self._names.allow_type(config.item_type)]

    async def workers(self, **options: Any) -> tuple[Sequence[Worker], Sequence[str]]:
        workers, unattended = await self._original.workers(**options)
        known = [
            replace(worker, info=replace(worker.info, item_types=tuple(self._own(worker.info.item_types))))
            for worker in workers
            if self._own(worker.info.item_types)
        ]
        return known, self._own(unattended)

    async def unserved(self, served: Collection[str] = ()) -> dict[str, int]:
        counts = await self._original.unserved(served)
        return {item_type: count for item_type, count in counts.items() if self._names.allow_type(item_type)}

    async def configure(self, item_type: str, **settings: Any) -> DispatchConfig:
        self._names.check_type(item_type)
        self._check_plan(settings.get("admission_plan", settings.get("admissionPlan")))
        return await self._original.configure(item_type, **settings)

    async def define(self, config: DispatchConfig) -> DispatchConfig:
        self._names.check_type(config.item_type)
        self._check_plan(config.admission_plan)
        return await self._original.define(config)

    async def declare(self, config: DispatchConfig) -> DispatchConfig:
        self._names.check_type(config.item_type)
        self._check_plan(config.admission_plan)
        return await self._original.declare(config)

    async def enqueue_requests(
        self, requests: Sequence[EnqueueRequest], *, connection: Any = None
    ) -> Sequence[EnqueueResult]:
        await self._check_requests(requests)
        return await self._original.enqueue_requests(requests, connection=connection)

    async def enqueue_group(
        self, head: EnqueueRequest, members: Sequence[EnqueueRequest], *, connection: Any = None
    ) -> Sequence[EnqueueResult]:
        await self._check_requests([head, *members])
        return await self._original.enqueue_group(head, members, connection=connection)

    async def _check_requests(self, requests: Iterable[EnqueueRequest]) -> None:
        for request in requests:
            self._names.check_type(request.item_type)
            if request.slot_id is not None:
                await self._check_slot(request.slot_id)

    async def _check_slot(self, event_id: str) -> None:
        """An item frees its slot when it is cancelled: that of others is none for it."""
        try:
            await self._slots.find(event_id)
        except NotFound:
            raise self._names.refusal(f"{event_id!r} has no slot of theirs") from None

    def _check_plan(self, plan: object) -> None:
        if plan is not None:
            self._names.check(plan)

    def _own(self, item_types: Iterable[str]) -> list[str]:
        return [item_type for item_type in item_types if self._names.allow_type(item_type)]


offer(
    BoundQueue, DispatchQueue, "item_type", lambda queue, item_type: queue._names.check_type(item_type), OF_AN_ITEM_TYPE
)
refuse_others(BoundQueue, DispatchQueue)


class BoundPeriodic(Periodic):
    """A `Periodic` that knows only tasks with a name and an item type of some names."""

    def __init__(self, periodic: Periodic, names: Names) -> None:
        self._original = periodic
        self._names = names

    async def list(self, **options: Any) -> list[PeriodicState]:
        return [state for state in await self._original.list(**options) if self._is_own(state)]

    async def show(self, name: str, **options: Any) -> PeriodicState:
        self._names.check(name)
        state = await self._original.show(name, **options)
        if not self._is_own(state):
            raise NotFound("periodic task", name)
        return state

    async def put(self, name: str, item_type: str, *args: Any, **options: Any) -> PeriodicState:
        self._names.check(name)
        self._names.check_type(item_type)
        for state in await self._original.list():
            if state.task.name == name:
                self._names.check_type(state.task.item_type)
        return await self._original.put(name, item_type, *args, **options)

    async def delete(self, name: str) -> None:
        await self.show(name)
        await self._original.delete(name)

    async def trigger(self, name: str, **options: Any) -> EnqueueResult:
        await self.show(name)
        return await self._original.trigger(name, **options)

    def _is_own(self, state: PeriodicState) -> bool:
        return self._names.allow(state.task.name) and self._names.allow_type(state.task.item_type)


refuse_others(BoundPeriodic, Periodic)
