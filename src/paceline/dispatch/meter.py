"""`QueueMeter`: reports the depth of the queues to an observer, periodically."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from paceline.dispatch.ports import DispatchObserver, QueueStore
from paceline.errors import PacelineError

log = logging.getLogger(__name__)

EVERY_SECONDS = 15.0


class QueueMeter:
    """Measures the queue of every item type. One per service is enough, wherever the workers run."""

    def __init__(self, store: QueueStore, observer: DispatchObserver, *, every: float = EVERY_SECONDS) -> None:
        self._store = store
        self._observer = observer
        self._every = every

    async def measure(self) -> None:
        """Measures once."""
        for config in await self._store.configs():
            self._observer.measured(await self._store.stats(config.item_type))

    async def run(self) -> None:
        """Measures until it is cancelled; a store that is down is measured later."""
        await measure_periodically(self.measure, "the queues", every=self._every)


async def measure_periodically(measure: Callable[[], Awaitable[None]], subject: str, *, every: float) -> None:
    """Measures until it is cancelled; a store that is down is measured later."""
    while True:
        try:
            await measure()
        except PacelineError as error:
            log.warning("%s could not be measured: %s", subject, error)
        await asyncio.sleep(every)
