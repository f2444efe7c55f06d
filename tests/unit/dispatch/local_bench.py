"""The in-process engine on a store in memory that fails, hangs and forgets its answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from paceline.clock import uptime
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Change, Claim, EnqueueRequest, Item
from paceline.dispatch.ports import Execution, Start, StartRequest
from paceline.dispatch.registry import Execute, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import StoreUnavailable
from tests.models.queue_store import MemoryQueueStore

NO_DELAY = timedelta(0)


class FlakyStore(MemoryQueueStore):
    """Fails to settle as often as told, hangs or is away while told to."""

    failures = 0
    away = False
    reads = 0
    """How often it was asked for settings."""
    touched = 0
    """How often heartbeats were written."""
    before_settling: Callable[[], Awaitable[Any]] | None = None
    after_settling: Callable[[], Awaitable[Any]] | None = None
    """The changes are committed, and the answer is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.answering = asyncio.Event()
        self.answering.set()

    async def config(self, item_type: str) -> DispatchConfig | None:
        self.reads += 1
        await self.answering.wait()
        self._reached()
        return await super().config(item_type)

    async def touch(self, claims: Sequence[Claim], **options: Any) -> list[bool]:
        self._reached()
        self.touched += not options.get("begins")
        return await super().touch(claims, **options)

    def _reached(self) -> None:
        if self.away:
            raise StoreUnavailable("away")

    async def settle(self, changes: Sequence[Change], **options: Any) -> list[bool]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("gone")
        if self.before_settling is not None:
            before, self.before_settling = self.before_settling, None
            await before()
        self._reached()
        done = await super().settle(changes, **options)
        if self.after_settling is not None:
            after, self.after_settling = self.after_settling, None
            await after()
        return done

    async def settle_now(self, changes: Sequence[Change]) -> list[bool]:
        return await super().settle(changes)


class Turnstile:
    """A guard that admits when told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.gate = asyncio.Semaphore(0)
        self.waiting = 0

    async def admit(self, plan: str, key: str) -> None:
        self.calls.append((plan, key))
        self.waiting += 1
        try:
            await self.gate.acquire()
        finally:
            self.waiting -= 1


class Bench:
    """`began` counts effects: an item that is executed twice is there twice."""

    def __init__(self, *, clock: Callable[[], float] = uptime, **options: Any) -> None:
        self.store = FlakyStore()
        self.began: list[str] = []
        self.gate = asyncio.Event()
        self.errors: list[Exception] = []
        """What the next executions end in."""
        self.behave: Execute | None = None
        self.registry = Registry()
        self.registry.register("WORK", self._execute)
        self.engine = LocalEngine(self.registry, OutcomeReporter(self.store, clock=clock), **options)

    async def _execute(self, item_id: str, context: Any) -> None:
        self.began.append(item_id)
        if self.behave is not None:
            await self.behave(item_id, context)
            return
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)

    async def start(
        self, *item_ids: str, delay: timedelta = NO_DELAY, claim_requested_at: float | None = None, **settings: Any
    ) -> list[Claim]:
        config = (await self.configure()).changed(settings)
        await self.store.configure(config)
        await self.store.enqueue([EnqueueRequest.of("WORK", item_id, {}) for item_id in item_ids])
        batch = await self.store.claim("WORK", len(item_ids), NO_DELAY)
        requests = [
            StartRequest(item.claim, config, "{}", delay, claim_requested_at=claim_requested_at) for item in batch.items
        ]
        assert {outcome.start for outcome in await self.engine.start(requests)} == {Start.STARTED}
        return [item.claim for item in batch.items]

    async def again(self, item_id: str) -> Start:
        """Claims the item once more and starts it."""
        config = await self.configure()
        (item,) = (await self.store.claim("WORK", 1, config.look_ahead)).items
        assert item.claim.item_id == item_id
        (outcome,) = await self.engine.start([StartRequest(item.claim, config, "{}", NO_DELAY)])
        return outcome.start

    def room(self) -> int:
        """How many more items it takes."""
        room = self.engine.room(DispatchConfig(item_type="WORK"))
        assert room is not None
        return room

    async def configure(self) -> DispatchConfig:
        (config, *_) = [*await self.store.configs(), None]
        return config or DispatchConfig(item_type="WORK", retry_backoff_secs=0)

    async def switch(self, enabled: bool) -> None:
        await self.store.change("WORK", {"enabled": enabled})

    async def item(self, item_id: str) -> Item:
        row = await self.store.find("WORK", item_id)
        assert row is not None
        return row[0]

    async def status(self, item_id: str) -> Status:
        return (await self.item(item_id)).status

    async def seen_at(self, item_id: str) -> datetime | None:
        return (await self.item(item_id)).seen_at

    async def is_completed(self) -> bool:
        return set(await self.depth()) == {Status.COMPLETED}

    async def goes_on(self, claim: Claim) -> bool:
        (state,) = await self.engine.describe([claim])
        return state.execution is Execution.RUNNING

    async def depth(self) -> dict[Status, int]:
        return dict((await self.store.stats("WORK")).depth)
