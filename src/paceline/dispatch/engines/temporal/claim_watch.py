"""Watches the claims of the executions that run in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from paceline.dispatch.engines.temporal.failures import lost_claim
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import OutcomeSink
from paceline.errors import StoreError

LOOK_SECONDS = 0.5
"""How often running executions are checked for a cancellation."""
LOOKS_PER_HEARTBEAT = 10


@dataclass(slots=True, eq=False)
class _RunningExecution:
    """An execution that runs."""

    claim: Claim
    task: asyncio.Task[object]
    lost: bool = False
    """Whether it lost its claim, to an operator's cancellation or to another claim, and was cancelled for that."""


class ClaimWatch:
    """Cancels executions whose claim is lost: a process that has only the database can't cancel them in Temporal.

    It also sends heartbeats for the claims that hold, so that no worker without Temporal recovers them as stale.
    Temporal's own heartbeats show that the process is alive, not that it still holds the item.
    """

    def __init__(self, sink: OutcomeSink) -> None:
        self._sink = sink
        self._running: set[_RunningExecution] = set()
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, claim: Claim) -> AsyncIterator[None]:
        """Cancels the current asyncio task when the claim is lost; the block then raises `lost_claim`."""
        task = asyncio.current_task()
        assert task is not None
        watched = _RunningExecution(claim, task)
        self._running.add(watched)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        except asyncio.CancelledError:
            if watched.lost:
                raise lost_claim() from None
            raise
        finally:
            self._running.discard(watched)

    async def _look(self) -> None:
        """Checks until no execution runs."""
        looks = 0
        seen: set[_RunningExecution] = set()
        while self._running:
            await asyncio.sleep(LOOK_SECONDS)
            looks += 1
            # Executions that began since the last check are left out: most end before the next one.
            due, seen = [watched for watched in self._running if watched in seen], set(self._running)
            if due:
                with contextlib.suppress(StoreError):
                    await self._check(due, heartbeat=looks % LOOKS_PER_HEARTBEAT == 0)

    async def _check(self, watched: list[_RunningExecution], *, heartbeat: bool) -> None:
        claims = [one.claim for one in watched]
        holds = await (self._sink.alive(claims) if heartbeat else self._sink.holds(claims))
        for one, is_held in zip(watched, holds, strict=True):
            if not is_held and one in self._running and not one.lost:
                one.lost = True
                one.task.cancel()
