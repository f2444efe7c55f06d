"""All Temporal workers of one process, from start to graceful shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker

from paceline.dispatch.engines.temporal.dispatcher import DispatcherActivities
from paceline.dispatch.engines.temporal.schedule import DispatchSchedules
from paceline.dispatch.engines.temporal.versioning import make_current_if_first
from paceline.dispatch.engines.temporal.workers import (
    EXEC,
    WorkerOptions,
    dispatch_worker,
    exec_workers,
    init_worker,
)
from paceline.dispatch.ports import OutcomeSink
from paceline.dispatch.registry import Domain
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.dispatching import end_when
from paceline.dispatch.worker.places import DEFAULT_THREADS, Places
from paceline.errors import StoreUnavailable

ROLES = ("dispatch", "init", "exec")


class TemporalWorkerGroup:
    """Workers that start and end together. `intervals` are the Schedules to keep: item type and seconds."""

    def __init__(
        self,
        client: Client,
        workers: Sequence[Worker],
        *,
        places: Places | None = None,
        schedules: DispatchSchedules | None = None,
        intervals: Mapping[str, float] | None = None,
        version: WorkerDeploymentVersion | None = None,
    ) -> None:
        self._client = client
        self._workers = list(workers)
        self._places = places or Places()
        self._schedules = schedules
        self._intervals = dict(intervals or {})
        self._version = version

    @classmethod
    def of(
        cls,
        client: Client,
        domains: Sequence[Domain],
        roles: Collection[str],
        *,
        dispatcher: DispatcherActivities,
        schedules: DispatchSchedules,
        sink: OutcomeSink,
        limits: StartLimits | None = None,
        threads: int = DEFAULT_THREADS,
        options: WorkerOptions | None = None,
    ) -> TemporalWorkerGroup:
        """The worker group for some `ROLES`: one dispatch worker, one init worker and one exec worker per task queue.
        The domains' configs are those in force; `threads` of their executions run plain functions."""
        options = options or WorkerOptions()
        places = Places(EXEC.activities * len(domains), threads)
        workers: list[Worker] = []
        intervals: dict[str, float] = {}
        if "dispatch" in roles:
            workers.append(dispatch_worker(client, dispatcher, task_queue=schedules.task_queue, options=options))
            intervals = {domain.item_type: domain.config.dispatch_interval_secs for domain in domains}
        if "init" in roles:
            preparing = sorted((domain for domain in domains if domain.init_workflows), key=_init_queue)
            for queue, members in groupby(preparing, _init_queue):
                workers.append(init_worker(client, queue, list(members), options=options))
        if "exec" in roles:
            workers += exec_workers(client, domains, sink, places, limits=limits, options=options)
        return cls(client, workers, places=places, schedules=schedules, intervals=intervals, version=options.version)

    @property
    def task_queues(self) -> list[str]:
        return [worker.task_queue for worker in self._workers]

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set, then takes no more and lets what is in flight finish, within the workers' grace.
        Raises if one of the workers fails for good.

        Raises:
            ThreadsExhausted: all threads are held by functions that ran beyond their time-outs.
        """
        running = [asyncio.create_task(worker.run()) for worker in self._workers]
        settled = asyncio.create_task(self._settle_in())
        stopped = asyncio.create_task(stop.wait())
        exhausted = asyncio.create_task(end_when(self._places.exhausted))
        try:
            waiting = {*running, settled, stopped, exhausted}
            while not stopped.done():
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            for task in (settled, stopped, exhausted):
                task.cancel()
            await asyncio.gather(settled, stopped, exhausted, return_exceptions=True)
            await asyncio.gather(*(worker.shutdown() for worker in self._workers))
            await asyncio.gather(*running, return_exceptions=True)

    async def _settle_in(self) -> None:
        try:
            if self._version is not None:
                await make_current_if_first(self._client, self._version)
            if self._schedules is not None:
                for item_type, interval in self._intervals.items():
                    await self._schedules.keep(item_type, interval)
        except RPCError as error:
            raise StoreUnavailable(f"Temporal refused: {error.message}") from error


def _init_queue(domain: Domain) -> str:
    return domain.init_task_queue
