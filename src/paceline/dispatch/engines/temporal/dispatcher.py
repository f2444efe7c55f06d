"""The dispatcher as a workflow: a Schedule fires it, and it runs one cycle.

This module is loaded into the workflow sandbox: it imports no store and no driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from paceline.dispatch.engines.temporal.heartbeat import send_heartbeats
from paceline.dispatch.engines.temporal.schedule import DISPATCHER, DispatchSchedules, whole_seconds
from paceline.dispatch.worker.cycle import CycleReport
from paceline.errors import PacelineError

RUN_CYCLE = "paceline.run_cycle"
RESCHEDULE = "paceline.reschedule"

LONGEST_CYCLE = timedelta(minutes=5)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""A cycle whose worker died ends after this, and the next firing continues."""
ONCE = RetryPolicy(maximum_attempts=1)
"""The next firing is the retry; stale recovery finds the claims of a failed cycle."""
SLOWEST = 60.0
"""The longest pause, in seconds, of a dispatcher whose engine has no capacity."""


@workflow.defn(name=DISPATCHER)
class DispatcherWorkflow:
    """One cycle. While it pauses after a refusal, the Schedule skips its firings."""

    @workflow.run
    async def run(self, item_type: str, seconds: int) -> dict[str, Any]:
        report: dict[str, Any] = await workflow.execute_activity(
            RUN_CYCLE,
            item_type,
            start_to_close_timeout=LONGEST_CYCLE,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=ONCE,
        )
        if whole_seconds(report["interval"]) != seconds:
            await self._reschedule(item_type, report["interval"])
        report["troubles"] = 0
        if report["slow_down"]:
            before: dict[str, Any] = workflow.get_last_completion_result() or {}
            report["troubles"] = before.get("troubles", 0) + 1
            await workflow.sleep(min(seconds * 2.0 ** (report["troubles"] - 1), SLOWEST))
        return report

    async def _reschedule(self, item_type: str, interval: float) -> None:
        try:
            await workflow.execute_activity(
                RESCHEDULE, args=[item_type, interval], start_to_close_timeout=timedelta(seconds=30), retry_policy=ONCE
            )
        except ActivityError as error:
            workflow.logger.warning("the interval of %s could not be changed: %s", item_type, error.cause)


class DispatcherActivities:
    """The dispatcher's activities: `run_cycle` runs all five steps in one process, so that contexts stay out of the
    workflow's history; `measure`, if given, reports the queue's depth periodically."""

    def __init__(
        self,
        run_cycle: Callable[[str], Awaitable[CycleReport]],
        schedules: DispatchSchedules,
        *,
        measure: Callable[[str], Awaitable[None]] | None = None,
        measure_every: float = 15.0,
    ) -> None:
        self._run_cycle = run_cycle
        self._schedules = schedules
        self._measure = measure
        self._measure_every = measure_every
        self._measured: dict[str, float] = {}

    @property
    def all(self) -> list[Callable[..., Any]]:
        return [self.run_cycle, self.reschedule]

    @activity.defn(name=RUN_CYCLE)
    async def run_cycle(self, item_type: str) -> dict[str, Any]:
        heartbeats = asyncio.create_task(send_heartbeats(HEARTBEAT_TIMEOUT))
        try:
            report = await self._run_cycle(item_type)
            await self._measured_now_and_then(item_type)
        except PacelineError as error:
            raise ApplicationError(str(error), type=type(error).__name__) from error
        finally:
            heartbeats.cancel()
        return asdict(report)

    @activity.defn(name=RESCHEDULE)
    async def reschedule(self, item_type: str, interval: float) -> None:
        await self._schedules.keep(item_type, interval)

    async def _measured_now_and_then(self, item_type: str) -> None:
        now = time.monotonic()
        if (
            self._measure is not None
            and now - self._measured.get(item_type, -self._measure_every) >= self._measure_every
        ):
            self._measured[item_type] = now
            await self._measure(item_type)
