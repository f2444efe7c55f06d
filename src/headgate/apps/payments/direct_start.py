"""Release mode `direct`: a payment is handed to the engine as soon as it is kept, with a start delay until its slot.

The queue still holds it, so nothing depends on this: what could not be started here, or lies too far ahead, is started
by the dispatcher at its time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from headgate.apps.payments.model import ITEM_TYPE
from headgate.apps.payments.ports import NewPayment
from headgate.dispatch.cycle import DispatchCycle
from headgate.dispatch.ports import QueueStore, WorkflowEngine
from headgate.errors import HeadgateError
from headgate.tracing import Tracer

log = logging.getLogger(__name__)

AHEAD_MINS = 10_080
"""A week: how far ahead payments are handed over."""


class DirectRelease:
    """Starts what was just queued. It may start other payments that wait in the queue as well; they are as welcome."""

    def __init__(self, store: QueueStore, engine: WorkflowEngine, *, tracer: Tracer | None = None) -> None:
        self._store = store
        self._engine = engine
        self._cycle = DispatchCycle(store, engine, tracer=tracer)

    async def __call__(self, payments: Sequence[NewPayment]) -> None:
        try:
            await self._start(len(payments))
        except HeadgateError as error:
            log.warning("%d payments are left to the dispatcher: %s", len(payments), error)

    async def _start(self, count: int) -> None:
        config = await self._store.config(ITEM_TYPE)
        if config is None or not config.enabled:
            return
        room = self._engine.room(ITEM_TYPE)
        limit = count if room is None else min(count, room)
        if limit:
            ahead = replace(config, pre_start_buffer_mins=AHEAD_MINS)
            batch = await self._cycle.claim(ahead, limit)
            if batch.items:
                await self._cycle.record(ahead, batch, await self._cycle.start(ahead, batch))
