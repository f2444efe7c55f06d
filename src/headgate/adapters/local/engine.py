"""The in-process engine: executions are asyncio tasks, and the queue is what makes them durable.

A process that dies takes its executions along; their claims fall silent, stale recovery gives them back, and they run
again. A process that lives shows it: claims of running executions are touched, so nobody else takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.dispatch.model import Claim
from headgate.dispatch.ports import (
    STARTED,
    Execution,
    ExecutionState,
    Guard,
    Outcomes,
    Start,
    StartOutcome,
    StartRequest,
    Unguarded,
)
from headgate.dispatch.registry import Execute, Registry
from headgate.errors import StoreError
from headgate.tracing import Tracer

SHORTEST_BEAT, LONGEST_BEAT = 0.05, 15.0
LONGEST_PAUSE = 5.0
SWITCH_SECONDS = 0.5
"""How often the kill switch is looked at by who waits for admission."""


@dataclass(slots=True, eq=False)
class _Run:
    """One execution, from its start to the report of its outcome."""

    claim: Claim
    request: StartRequest
    execute: Execute
    started: float
    task: asyncio.Task[None] | None = None
    begun: bool = False
    executed: bool = False
    """Only the report is missing."""


class LocalEngine:
    """A `WorkflowEngine` in this process.

    At most `concurrency` executions of an item type run at once and at most `backlog` are held, waiting ones included.
    """

    def __init__(
        self,
        registry: Registry,
        outcomes: Outcomes,
        *,
        guard: Guard | None = None,
        tracer: Tracer | None = None,
        concurrency: int = 100,
        backlog: int = 2000,
        grace: float = 10.0,
    ) -> None:
        self._registry = registry
        self._outcomes = outcomes
        self._guard = guard or Unguarded()
        self._tracer = tracer
        self._concurrency = concurrency
        self._backlog = backlog
        self._grace = grace
        self._runs: dict[str, _Run] = {}
        self._held: Counter[str] = Counter()
        self._lanes: dict[str, asyncio.Semaphore] = {}
        self._closing = False
        self._heart: asyncio.Task[None] | None = None
        self._span = LONGEST_BEAT
        self._quicker = asyncio.Event()

    # -- WorkflowEngine ------------------------------------------------------------------------------------------

    async def start(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        return [self._start(request) for request in requests]

    def _start(self, request: StartRequest) -> StartOutcome:
        item_type = request.claim.item_type
        if self._closing:
            return StartOutcome(Start.EXHAUSTED, "shutting down")
        if item_type not in self._registry:
            return StartOutcome(Start.FAILED, f"no {item_type!r} is registered in this process")
        running = self._runs.get(request.execution_id)
        if running is not None:
            # Our own older claim was recovered while it ran; the run goes on under the new one.
            running.claim = request.claim
            return StartOutcome(Start.ALREADY_STARTED)
        loop = asyncio.get_running_loop()
        run = _Run(request.claim, request, self._registry[item_type].execute, loop.time())
        self._runs[request.execution_id] = run
        self._held[item_type] += 1
        if _beat_of(request) < self._span:
            self._quicker.set()
        run.task = loop.create_task(self._carry(run), name=request.execution_id)
        return STARTED

    async def describe(self, claims: Sequence[Claim]) -> list[ExecutionState]:
        return [
            ExecutionState(Execution.RUNNING if claim.execution_id in self._runs else Execution.NOT_FOUND)
            for claim in claims
        ]

    def room(self, item_type: str) -> int | None:
        return 0 if self._closing else max(0, self._backlog - self._held[item_type])

    async def close(self) -> None:
        """Gives back what has not begun, waits a while for what runs, then gives that back too."""
        self._closing = True
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        await asyncio.sleep(0)  # a task cancelled before its first step would give nothing back
        for run in self._runs.values():
            if run.task is not None and not run.begun:
                run.task.cancel()
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=self._grace)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=self._grace)
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart

    # -- one execution -------------------------------------------------------------------------------------------

    async def _carry(self, run: _Run) -> None:
        try:
            await self._report(run, await self._execute(run))
        finally:
            del self._runs[run.request.execution_id]
            self._held[run.claim.item_type] -= 1

    async def _execute(self, run: _Run) -> Callable[[], Awaitable[bool]]:
        """Runs the item at its time; the result says whom to tell."""
        outcomes, request, item_type = self._outcomes, run.request, run.claim.item_type
        try:
            delay = request.start_delay.total_seconds()
            if delay > 0:
                await asyncio.sleep(delay)
            async with self._lane(item_type):
                # Read before it is admitted: whoever is admitted must call at once.
                context = json.loads(request.context_json)
                if not await self._may_begin(item_type, request.config.admission_plan):
                    return lambda: outcomes.released(run.claim, "the kill switch was off at its time")
                run.begun = True
                await self._run(run, context)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            return lambda: outcomes.released(run.claim, "the engine was closed")
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            return lambda: outcomes.failed(run.claim, failure)
        return lambda: outcomes.completed(run.claim)

    async def _run(self, run: _Run, context: Any) -> None:
        item_type, item_id = run.claim.item_type, run.claim.item_id
        if self._tracer is None:
            await run.execute(item_id, context)
            return
        attributes = {"headgate.item_type": item_type, "headgate.item_id": item_id}
        span = self._tracer.begin(f"execute {item_type}", attributes, parent=run.request.traceparent)
        try:
            with self._tracer.inside(span):
                await run.execute(item_id, context)
        except BaseException as error:
            span.end({"headgate.outcome": "failed"}, failed=type(error).__name__)
            raise
        span.end({"headgate.outcome": "completed"})

    async def _may_begin(self, item_type: str, plan: str | None) -> bool:
        """Whether the kill switch lets it begin, and then not before the plan admits it. The switch is watched while it
        waits, not looked at afterwards: whoever is admitted must call at once, or a slow look would let calls bunch."""
        if not await self._outcomes.enabled(item_type):
            return False
        if plan is None:
            return True
        switch = asyncio.ensure_future(self._switched_off(item_type))
        try:
            async with asyncio.timeout(None) as patience:
                switch.add_done_callback(lambda _: _end(patience))
                # Awaited right here: a task of its own would end some turns of the loop before the call begins.
                await self._guard.admit(plan, item_type)
            return True
        except TimeoutError:
            if not patience.expired():
                raise
            switch.result()
            return False
        finally:
            switch.cancel()

    async def _switched_off(self, item_type: str) -> None:
        """Returns when the kill switch is off."""
        while True:
            await asyncio.sleep(SWITCH_SECONDS)
            if not await self._outcomes.enabled(item_type):
                return

    async def _report(self, run: _Run, tell: Callable[[], Awaitable[bool]]) -> None:
        """Tells the outcome until it is told: the effect has happened, and nothing but the report may show it."""
        run.begun = run.executed = True
        pause = 0.05
        while True:
            claim = run.claim
            try:
                told = await tell()
            except StoreError:
                if self._closing:
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                # A claim that took the run over while it was being told of counts instead.
                if told or run.claim == claim:
                    return

    def _lane(self, item_type: str) -> asyncio.Semaphore:
        lane = self._lanes.get(item_type)
        if lane is None:
            lane = self._lanes[item_type] = asyncio.Semaphore(self._concurrency)
        return lane

    # -- signs of life -------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._span = min((_beat_of(run.request) for run in self._runs.values()), default=LONGEST_BEAT)
            with contextlib.suppress(TimeoutError):
                # Cut short by a run that needs a quicker beat than those so far.
                await asyncio.wait_for(self._quicker.wait(), self._span)
            self._quicker.clear()
            long = [run for run in self._runs.values() if loop.time() - run.started >= self._span]
            if long:
                with contextlib.suppress(StoreError):
                    await self._touch(long)

    async def _touch(self, runs: Sequence[_Run]) -> None:
        claims = [run.claim for run in runs]
        alive = await self._outcomes.alive(claims)
        for run, claim, held in zip(runs, claims, alive, strict=True):
            # Lost to another dispatcher, which runs it by now: stop, unless only the report is missing.
            if not held and not run.executed and run.claim == claim and run.task is not None:
                run.task.cancel()


def _end(patience: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        patience.reschedule(asyncio.get_running_loop().time())


def _beat_of(request: StartRequest) -> float:
    """How often the run must show a sign of life."""
    return min(max(request.config.stale_after.total_seconds() / 4, SHORTEST_BEAT), LONGEST_BEAT)
