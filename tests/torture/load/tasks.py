"""Callers that enqueue tasks, through the library; they retry unknown outcomes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.errors import Conflict, StoreUnavailable
from tests.torture.load import Site

MOST_TRIES = 30


class Steps:
    """Queues one `step` after the other."""

    def __init__(self, site: Site, step: Any) -> None:
        self._site = site
        self._step = step
        self._numbers = itertools.count()

    async def run(self) -> None:
        site, random = self._site, self._site.random
        while not site.stop.is_set():
            due = datetime.now(UTC) + timedelta(seconds=random.choice([0.0, random.uniform(0, 6)]))
            await self._enqueue(f"item-{next(self._numbers)}", due, round(random.random() ** 3 * 2, 3))
            await site.pause(0.4)

    async def _enqueue(self, item: str, due: datetime, seconds: float) -> None:
        recorder = self._site.recorder
        for _ in range(MOST_TRIES):
            call = recorder.invoke("tasks.enqueue", item=item, due=due.timestamp())
            try:
                await self._step.options(key=item, at=due).enqueue(seconds)
            except (StoreUnavailable, Conflict) as error:
                recorder.complete(call, "unknown", error=str(error))
                await self._site.pause(0.5)
            else:
                recorder.complete(call, "ok")
                return
