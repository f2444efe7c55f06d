"""Heartbeats of a worker whose store answers late."""

from __future__ import annotations

import asyncio
from datetime import datetime

from paceline.dispatch.worker.heartbeats import Worker, WorkerInfo, heartbeats

WORKER = WorkerInfo("w-1", "alpha", 7, "1.0.0", "local", ("dispatch", "exec"), ("PAY",), 100)


class SlowStore:
    """Writes a heartbeat when the test lets it, as a transaction on a thread: also if its caller is gone by then."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.written: set[str] = set()
        self._writes: set[asyncio.Task[None]] = set()

    async def beat(self, info: WorkerInfo, running: int | None, *, now: datetime | None = None) -> None:
        self._writes.add(write := asyncio.create_task(self._write(info.worker_id)))
        await asyncio.shield(write)

    async def _write(self, worker_id: str) -> None:
        self.begun.set()
        await self.go_on.wait()
        self.written.add(worker_id)

    async def leave(self, worker_id: str) -> None:
        self.written.discard(worker_id)

    async def workers(self, *, now: datetime | None = None) -> list[Worker]:
        raise NotImplementedError

    async def close(self) -> None:
        await asyncio.gather(*self._writes)


async def test_a_heartbeat_in_flight_at_the_end_leaves_no_worker_behind() -> None:
    store = SlowStore()
    block = heartbeats(store, WORKER)
    await block.__aenter__()
    await store.begun.wait()
    leaving = asyncio.create_task(block.__aexit__(None, None, None))
    for _ in range(10):
        await asyncio.sleep(0)  # the exit gets as far as it can
    store.go_on.set()
    await leaving
    await store.close()
    assert store.written == set()
