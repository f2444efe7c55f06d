"""`OutcomeReporter`: engines tell it how executions ended; many outcomes share one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headgate.batching import Batcher
from headgate.clock import uptime
from headgate.dispatch import events
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.decisions import after_failure, after_success, released
from headgate.dispatch.model import Change, Claim
from headgate.dispatch.ports import DispatchObserver, NullObserver, QueueStore
from headgate.dispatch.status import Status
from headgate.errors import NotFound, StoreError

REMEMBERED_SECONDS = 1.0
"""For how long settings are not asked for again; shorter if their own interval is."""
TRUSTED_SECONDS = 5.0
"""For how long the last word on the kill switch stands when the store can't be asked. An outcome could not be told
then either, so that nothing is gained by beginning much more."""


class _Known(NamedTuple):
    """Settings, as they were when they were asked for."""

    config: DispatchConfig
    asked: float
    fresh_until: float


class OutcomeReporter:
    """The `Outcomes` of a queue: one of them is shared by all engines of a process."""

    def __init__(
        self,
        store: QueueStore,
        *,
        observer: DispatchObserver | None = None,
        most: int = 1000,
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._store = store
        self._observer = observer or NullObserver()
        self._clock = clock
        self._gatherer: Batcher[Change, bool] = Batcher(self._carry, most=most)
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[DispatchConfig]] = {}
        self._failing = 0
        self._none_failing = asyncio.Event()

    async def completed(self, claim: Claim) -> bool:
        return await self._gatherer.submit(after_success(claim))

    async def failed(self, claim: Claim, error: str) -> bool:
        self._failing += 1
        try:
            return await self._gatherer.submit(after_failure(claim, await self.config(claim.item_type), error))
        finally:
            self._failing -= 1
            if not self._failing:
                self._none_failing.set()

    async def released(self, claim: Claim, reason: str) -> bool:
        return await self._gatherer.submit(released(claim, reason))

    async def alive(self, claims: Sequence[Claim]) -> list[bool]:
        return await self._store.touch(claims)

    async def enabled(self, item_type: str) -> bool:
        try:
            return (await self.config(item_type)).enabled
        except StoreError:
            known = self._known.get(item_type)
            if known is None or self._clock() - known.asked >= TRUSTED_SECONDS:
                raise
            return known.config.enabled

    async def config(self, item_type: str) -> DispatchConfig:
        """The item type's settings, at most half an interval or a second old."""
        known = self._known.get(item_type)
        if known is not None and self._clock() < known.fresh_until:
            return known.config
        # One asks for all: else every execution that waits for its turn would, all at once, each time the second is up.
        asking = self._asking.get(item_type)
        if asking is None:
            asking = self._asking[item_type] = asyncio.create_task(self._asked(item_type))
        return await asyncio.shield(asking)

    async def _asked(self, item_type: str) -> DispatchConfig:
        asked = self._clock()
        try:
            config = await self._store.config(item_type)
            if config is None:
                raise NotFound("item type", item_type)
            remembered = min(REMEMBERED_SECONDS, config.dispatch_interval_secs / 2)
            self._known[item_type] = _Known(config, asked, asked + remembered)
            return config
        finally:
            del self._asking[item_type]

    async def close(self) -> None:
        """Returns when all outcomes told so far are committed."""
        while self._failing:
            # It may still wait for the settings, and has told nobody yet.
            self._none_failing.clear()
            await self._none_failing.wait()
        await self._gatherer.close()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _carry(self, changes: Sequence[Change]) -> list[bool]:
        done = await self._store.settle(changes)
        written = [change for change, ok in zip(changes, done, strict=True) if ok]
        for item_type, items in Counter(change.claim.item_type for change in written).items():
            mine = [change for change in written if change.claim.item_type == item_type]
            completed = sum(change.status is Status.COMPLETED for change in mine)
            failed = sum(Status.FAILED in change.path for change in mine)
            dead = sum(change.status is Status.DEAD_LETTER for change in mine)
            if items:
                self._observer.finished(item_type, completed, failed)
            if failed or dead:
                events.log_trouble(mine)
            if dead:
                self._observer.dead_lettered(item_type, dead)
        return done
