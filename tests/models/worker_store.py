"""The workers of a queue in this process's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from paceline.dispatch.worker.heartbeats import FORGOTTEN, Worker, WorkerInfo, is_alive


class MemoryWorkerStore:
    """A `WorkerStore` in the memory of the process."""

    def __init__(self, clock: Callable[[datetime | None], datetime]) -> None:
        self._clock = clock
        self._workers: dict[str, Worker] = {}

    async def beat(self, info: WorkerInfo, running: int | None, *, now: datetime | None = None) -> None:
        moment = self._clock(now)
        before = self._workers.get(info.worker_id)
        started = moment if before is None else before.started_at
        if before is None:
            kept = {key: worker for key, worker in self._workers.items() if worker.seen_at >= moment - FORGOTTEN}
            self._workers = kept
        self._workers[info.worker_id] = Worker(info, running, started, moment, True)

    async def leave(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    async def workers(self, *, now: datetime | None = None) -> list[Worker]:
        moment = self._clock(now)
        workers = sorted(self._workers.values(), key=lambda one: (one.info.host, one.info.pid, one.started_at))
        return [replace(worker, alive=is_alive(worker.seen_at, moment)) for worker in workers]
