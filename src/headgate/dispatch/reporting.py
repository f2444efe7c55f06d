"""`OutcomeReporter`: engines tell it how executions ended; many outcomes share one transaction."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from headgate.dispatch import journal
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.decisions import after_failure, after_success, released
from headgate.dispatch.model import Change, Claim
from headgate.dispatch.ports import DispatchObserver, QueueStore, Unobserved
from headgate.dispatch.status import Status
from headgate.errors import NotFound, StoreError
from headgate.gather import Gatherer

REMEMBERED_SECONDS = 1.0


class OutcomeReporter:
    """The `Outcomes` of a queue: one of them is shared by all engines of a process."""

    def __init__(self, store: QueueStore, *, observer: DispatchObserver | None = None, most: int = 1000) -> None:
        self._store = store
        self._observer = observer or Unobserved()
        self._gatherer: Gatherer[Change, bool] = Gatherer(self._carry, most=most)
        self._configs: dict[str, tuple[float, DispatchConfig]] = {}
        self._asking: dict[str, asyncio.Task[DispatchConfig]] = {}

    async def completed(self, claim: Claim) -> bool:
        return await self._gatherer.submit(after_success(claim))

    async def failed(self, claim: Claim, error: str) -> bool:
        return await self._gatherer.submit(after_failure(claim, await self.config(claim.item_type), error))

    async def released(self, claim: Claim, reason: str) -> bool:
        return await self._gatherer.submit(released(claim, reason))

    async def alive(self, claims: Sequence[Claim]) -> list[bool]:
        return await self._store.touch(claims)

    async def enabled(self, item_type: str) -> bool:
        try:
            return (await self.config(item_type)).enabled
        except StoreError:
            # Without the store, its last word stands.
            remembered = self._configs.get(item_type)
            return remembered is None or remembered[1].enabled

    async def config(self, item_type: str) -> DispatchConfig:
        """The item type's settings, at most a second old."""
        remembered = self._configs.get(item_type)
        if remembered is not None and time.monotonic() - remembered[0] < REMEMBERED_SECONDS:
            return remembered[1]
        # One asks for all: else every execution that waits for its turn would, all at once, each time the second is up.
        asking = self._asking.get(item_type)
        if asking is None:
            asking = self._asking[item_type] = asyncio.create_task(self._asked(item_type))
        return await asyncio.shield(asking)

    async def _asked(self, item_type: str) -> DispatchConfig:
        try:
            config = await self._store.config(item_type)
            if config is None:
                raise NotFound("item type", item_type)
            self._configs[item_type] = time.monotonic(), config
            return config
        finally:
            del self._asking[item_type]

    async def close(self) -> None:
        """Returns when all outcomes told so far are committed."""
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
                journal.log_trouble(mine)
            if dead:
                self._observer.dead_lettered(item_type, dead)
        return done
