"""The in-process engine: executions are asyncio tasks, made durable by the queue.

If a process dies, its executions' claims get no more heartbeats, stale recovery releases them, and they run again. A
live process sends heartbeats for the claims of its running executions, so no other process takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from paceline import tracing
from paceline.clock import uptime
from paceline.dispatch import events
from paceline.dispatch.config import DispatchConfig, OnUnknown
from paceline.dispatch.current_task import CurrentTask, current_task, enter_task
from paceline.dispatch.downstream_turn import DownstreamTurn, at_turn, is_open, needs_turn, turn_of
from paceline.dispatch.kill_switch import OFF, SWITCH_SECONDS
from paceline.dispatch.model import CLAIM_BYTES, Claim, Completion, GiveUp, Postponed, WritingRefused, read_json
from paceline.dispatch.outcomes import OutcomeUnknown, Retry
from paceline.dispatch.ports import (
    STARTED,
    DispatchObserver,
    Execution,
    ExecutionState,
    NullObserver,
    OutcomeSink,
    Start,
    StartOutcome,
    StartRequest,
)
from paceline.dispatch.registry import Registry, inquires
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.task_errors import describe, traceback_of
from paceline.dispatch.worker.pace import Pace
from paceline.dispatch.worker.places import DEFAULT_CONCURRENCY, DEFAULT_THREADS, Place, Places, execute_on
from paceline.dispatch.worker.run import LONGEST_HEARTBEAT, Run, heartbeat_interval
from paceline.dispatch.worker.start_check import LONGEST_PAUSE, SHORTEST_PAUSE, StartCheck, StartRefused
from paceline.dispatch.worker.threads import needs_thread
from paceline.errors import NotFound, StoreError, StoreUnavailable

GRACE_SECONDS = 30.0
"""The grace period of running executions when the engine closes; cancelled, they have as long to report."""
CANCEL_SECONDS = 0.5
"""The interval at which running executions are checked for a cancellation."""
MAX_WAIT_FOR_PLACE = 2.0
"""Seconds. What waits longer for a place is given back."""
NO_PLACE = "no place was free"
MOST_REFUSALS = 4
"""How often an execution's writing is tried. A concurrent write may refuse the first ones."""
Report = Callable[[Claim], Awaitable[bool]]
"""Reports an outcome under the run's claim."""


class LocalEngine:
    """A `WorkflowEngine` in this process.

    At most `concurrency` executions run at once, of which `threads` are plain functions. Beyond those it holds only
    what will start within a moment, and at most `prefetch` items of a type. While contexts of a type have
    `max_context_bytes` or more, it takes no further items of it.

    An execution waits in this order: for its time, for a place, for the kill switch, and last for its permit, which
    `limits` and its task's downstream give. That it begins is written then, and its body begins. With `at_pace=False`
    nothing waits for a downstream, and none is called: for tests.
    """

    def __init__(
        self,
        registry: Registry,
        sink: OutcomeSink,
        *,
        limits: StartLimits | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        threads: int = DEFAULT_THREADS,
        prefetch: int | None = None,
        max_context_bytes: int = CLAIM_BYTES,
        grace: float = GRACE_SECONDS,
        observer: DispatchObserver | None = None,
        at_pace: bool = True,
    ) -> None:
        self._registry = registry
        self._at_pace = at_pace
        self._sink = sink
        self._limits = limits
        self._start_check = StartCheck(sink)
        self._pace = Pace(prefetch)
        self._places = Places(concurrency, threads, most_at_permit=lambda item_type: 1 + self._pace.prefetch(item_type))
        self._grace = grace
        self._observer = observer or NullObserver()
        self._runs: dict[str, Run] = {}
        self._waiting: Counter[str] = Counter()
        """By item type: runs whose time has come, and that have no place."""
        self._waiting_for: Counter[bool] = Counter()
        """Those of them that need no permit, by whether they need a thread."""
        self._reserved: Counter[bool] = Counter()
        """Places for items that are being claimed, by whether they need a thread."""
        self._ahead: Counter[bool] = Counter()
        """Runs whose time has not come, by whether they need a thread."""
        self._context_bytes: Counter[str] = Counter()
        self._max_context_bytes = max_context_bytes
        self._on_thread: dict[str, bool] = {}
        self._closing = False
        self._heartbeats: asyncio.Task[None] | None = None
        self._recalls: asyncio.Task[None] | None = None
        self._cancels: asyncio.Task[None] | None = None
        self._heartbeat_interval = LONGEST_HEARTBEAT
        self._shorter_interval = asyncio.Event()

    # -- WorkflowEngine ------------------------------------------------------------------------------------------

    async def start(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._send_heartbeats())
            self._recalls = asyncio.create_task(self._recall())
            self._cancels = asyncio.create_task(self._stop_cancelled())
        if requests and (requested_at := requests[0].config_requested_at) is not None:
            # Executions that need not wait for the kill switch may end before their starts are recorded: one write.
            self._sink.learn(requests[0].config, requested_at)
        return [self._start(request) for request in requests]

    def is_closing(self) -> bool:
        """Whether it takes no more work, and running executions have the grace period."""
        return self._closing

    def _start(self, request: StartRequest) -> StartOutcome:
        item_type = request.claim.item_type
        if self._closing:
            return StartOutcome(Start.EXHAUSTED, "shutting down")
        if item_type not in self._registry:
            return StartOutcome(Start.FAILED, f"no {item_type!r} is registered in this process")
        seen = uptime() if request.claim_requested_at is None else request.claim_requested_at
        execution_id = request.execution_id
        run = Run(
            request.claim,
            request,
            self._registry[item_type].execute,
            seen,
            execution_id,
            on_thread=self._needs_thread(item_type),
            counts=request.has_begun,
            turn=self._turn_of(item_type, request.config),
            at_once=is_open(self._registry[item_type].execute, request.config),
        )
        running = self._runs.get(execution_id)
        if running is not None:
            if request.claim.epoch <= running.claim.epoch:
                return StartOutcome(Start.ALREADY_STARTED)
            if not running.over:
                # Our own older claim was recovered while it ran; the run continues under the new one.
                running.claim, running.seen = request.claim, seen
                return StartOutcome(Start.ALREADY_STARTED)
            run.after = running.task
            if running.executed and running.task is not None:
                # Its report would be about a claim that is void.
                running.task.cancel()
        self._runs[execution_id] = run
        if request.start_delay:
            self._ahead[run.on_thread] += 1
        else:
            self._wait_for_place(run)
        self._context_bytes[item_type] += len(request.context_json)
        if heartbeat_interval(request) < self._heartbeat_interval:
            self._shorter_interval.set()
        run.task = asyncio.create_task(self._run_to_end(run), name=execution_id)
        return STARTED

    async def describe(self, claims: Sequence[Claim]) -> list[ExecutionState]:
        return [
            ExecutionState(Execution.RUNNING if claim.execution_id in self._runs else Execution.NOT_FOUND)
            for claim in claims
        ]

    async def stop(self, claims: Sequence[Claim], *, running: bool = False) -> None:
        for claim in claims:
            run = self._runs.get(claim.execution_id)
            if run is not None and run.task is not None and (running or not run.begun) and not run.executed:
                run.lost = True
                run.task.cancel()

    def room(self, config: DispatchConfig) -> int | None:
        item_type = config.item_type
        if self._closing or self._context_bytes[item_type] >= self._max_context_bytes:
            return 0
        on_thread, mine = self._needs_thread(item_type), self._waiting[item_type]
        free = self._places.free(on_thread=on_thread)
        if self._needs_permit(config):
            free = self._places.free_at_permit(item_type, on_thread=on_thread)
        else:
            # Others of this kind, which were here first.
            free -= self._waiting_for[on_thread] - mine + self._reserved.total()
        return self._start_check.room(item_type, max(0, max(0, free) + self._pace.prefetch(item_type) - mine))

    @contextlib.contextmanager
    def reserved(self, config: DispatchConfig, limit: int) -> Iterator[int]:
        on_thread = self._needs_thread(config.item_type)
        free = self._places.free(on_thread=on_thread) - self._waiting_for[on_thread] - self._reserved.total()
        waits = self._needs_permit(config) or config.jitter_window_ms or self._waiting[config.item_type]
        places = 0 if waits else min(limit, max(0, free))
        self._reserved[on_thread] += places
        try:
            yield places
        finally:
            self._reserved[on_thread] -= places

    def looks_ahead(self, item_type: str) -> bool:
        on_thread = self._needs_thread(item_type)
        places = self._places.threads if on_thread else self._places.concurrency
        return self._ahead[on_thread] < places

    def inquires(self, item_type: str) -> bool:
        return item_type in self._registry and inquires(self._registry[item_type].execute)

    @property
    def holds_claims(self) -> bool:
        """Whether it holds any."""
        return bool(self._runs)

    def begun_claims(self) -> list[Claim]:
        """The claims whose executions have begun."""
        return [run.claim for run in [*self._runs.values()] if run.counts and not run.lost]

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of the claim that needs them most often."""
        return self._heartbeat_interval

    async def exhausted(self) -> str:
        """`Places.exhausted`; from then on it takes no more work."""
        message = await self._places.exhausted()
        self._closing = True
        return message

    @property
    def running(self) -> int:
        """The number of executions that have begun and not ended."""
        return sum(run.begun and not run.executed for run in self._runs.values())

    async def drained(self) -> None:
        """Returns when all executions so far have ended, and their outcomes are committed."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Releases what has not begun, waits for the grace period, then releases what still runs."""
        self._closing = True
        tasks = [task for run in self._runs.values() for task in (run.task, run.after) if task is not None]
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
        for watch in (self._heartbeats, self._recalls, self._cancels):
            if watch is not None:
                watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watch

    # -- one execution -------------------------------------------------------------------------------------------

    async def _run_to_end(self, run: Run) -> None:
        try:
            report = await self._execute(run)
            run.begun = run.executed = True
            if report is not None:
                await self._report_until_done(run, report)
        finally:
            if self._runs.get(run.execution_id) is run:
                del self._runs[run.execution_id]
            self._context_bytes[run.claim.item_type] -= len(run.request.context_json)
            # The task's context leads to its `CurrentTask`, and that to the run: a cycle that only the garbage
            # collector would find.
            run.task = None

    async def _execute(self, run: Run) -> Report | None:
        """Runs the item at its time; returns the report to make, if any."""
        # No closures in here: their cells would cost the garbage collector work per execution.
        request, item_type = run.request, run.claim.item_type
        try:
            await self._until_due(run)
            place = await self._place_of(run)
            try:
                # Read before the admission: an admitted execution must call at once.
                context = read_json(request.context_json)
                await self._start_check.wait(run)
                place.admitted()
                run.begun = True
                began = uptime()
                try:
                    result = await self._call(run, context, place)
                finally:
                    # What was given back does not count: it says nothing of how soon others begin.
                    self._pace.ended(item_type)
                    self._observer.executed(item_type, uptime() - began)
            finally:
                place.release()
                if run.turn is not None:
                    await run.turn.leave()  # if its body was never reached
        except StartRefused as refusal:
            return None if refusal.lost else self._release(refusal.reason)
        except asyncio.CancelledError as error:
            if run.task is not None and not run.task.cancelling():
                # Not ours: something that the work awaited was cancelled.
                return self._failure(run, error)
            if run.recalled:
                return self._release(run.recalled)
            if run.lost:
                raise
            if self._closing:
                is_inquiring = run.begun and current_task().in_doubt
                if run.begun and not is_inquiring and run.request.config.on_unknown != OnUnknown.RETRY:
                    return self._unknown(run, OutcomeUnknown("its worker ended while it ran"))
                return self._release("the engine was closed")
            if self._loop_ends():
                raise
            return self._failure(run, error)  # it cancelled itself
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failure(run, error)
        run.succeeded = True
        completion = result if isinstance(result, Completion) else None
        if writings := current_task().writings:
            completion = (completion or Completion(None))._replace(writings=writings)
        return self._sink.completed if completion is None else self._completion(completion)

    async def _until_due(self, run: Run) -> None:
        delay = run.request.start_delay
        try:
            if run.after is not None:
                await asyncio.wait({run.after})
            if delay:
                await asyncio.sleep(delay.total_seconds())
        except BaseException:
            if not delay:
                self._leave_wait(run)
            raise
        finally:
            if delay:
                self._ahead[run.on_thread] -= 1
        if delay:
            self._wait_for_place(run)

    async def _place_of(self, run: Run) -> Place:
        """Its place, in turn."""
        request = run.request
        try:
            return await self._places.acquire(
                run.claim.item_type,
                request.lane,
                request.priority,
                on_thread=run.on_thread,
                needs_permit=run.needs_permit,
            )
        finally:
            self._leave_wait(run)

    def _wait_for_place(self, run: Run) -> None:
        run.waits_since = uptime()
        self._waiting[run.claim.item_type] += 1
        self._waiting_for[run.on_thread] += not run.needs_permit

    def _leave_wait(self, run: Run) -> None:
        run.waits_since = None
        self._waiting[run.claim.item_type] -= 1
        self._waiting_for[run.on_thread] -= not run.needs_permit

    def _loop_ends(self) -> bool:
        """Whether all asyncio tasks have been cancelled, as `asyncio.run` does at its end."""
        return self._heartbeats is not None and (self._heartbeats.done() or self._heartbeats.cancelling() > 0)

    def _completion(self, completion: Completion) -> Report:
        return lambda claim: self._sink.completed(claim, completion)

    def _release(self, reason: str, pause: timedelta | None = None) -> Report:
        return lambda claim: self._sink.released(claim, reason, pause)

    def _failure(self, run: Run, error: BaseException) -> Report:
        if isinstance(error, GiveUp):
            why, verdict, trace = str(error), error.verdict, self._traceback(run, error)
            return lambda claim: self._sink.gave_up(claim, why, verdict, trace)
        if isinstance(error, Postponed):
            return self._release(str(error), error.pause)
        if isinstance(error, StoreUnavailable):
            # A store's outage is not the item's failure: the item is released and no retry is counted.
            return self._release(f"{type(error).__name__}: {error}", run.request.config.backoff(1))
        if isinstance(error, OutcomeUnknown):
            return self._unknown(run, error)
        if isinstance(error, Retry):
            again, after, trace = str(error), error.pause(), self._traceback(run, error)
            return lambda claim: self._sink.failed(claim, again, after, trace)
        failure, trace = describe(error), self._traceback(run, error)
        return lambda claim: self._sink.failed(claim, failure, None, trace)

    def _unknown(self, run: Run, error: OutcomeUnknown) -> Report:
        trace = self._traceback(run, error)
        return lambda claim: self._sink.unknown(claim, str(error), error.pause, trace, is_over=error.is_over)

    def _traceback(self, run: Run, error: BaseException) -> str | None:
        """For the attempt's record; it is logged too."""
        text = traceback_of(error)
        events.log_traceback(run.claim, text)
        return text

    async def _call(self, run: Run, context: Any, place: Place) -> Any:
        item_type, item_id = run.claim.item_type, run.claim.item_id
        request = run.request
        current = CurrentTask(
            run.current_claim,
            self._sink,
            request.lane,
            request.priority,
            place,
            self.is_closing,
            run.turn,
            writes=True,
        )
        current.in_doubt, current.is_last_inquiry = request.in_doubt, request.is_last_inquiry
        current.is_used_up = request.config.is_used_up(run.claim.retries)
        enter_task(current)
        if not tracing.is_on():
            return await self._at_turn(run, context, place)
        attributes = {"paceline.item_type": item_type, "paceline.item_id": item_id}
        span = tracing.begin(f"execute {item_type}", attributes, parent=run.request.traceparent)
        try:
            with tracing.inside(span):
                result = await self._at_turn(run, context, place)
        except BaseException as error:
            span.end({"paceline.outcome": "failed"}, failed=type(error).__name__)
            raise
        span.end({"paceline.outcome": "completed"})
        return result

    async def _at_turn(self, run: Run, context: Any, place: Place) -> Any:
        if run.turn is None:
            return await execute_on(place, run.execute, run.claim.item_id, context)
        return await at_turn(run.turn, run.execute, partial(execute_on, place, run.execute, run.claim.item_id, context))

    async def _report_until_done(self, run: Run, report: Report) -> None:
        """Retries the report of the outcome until it succeeds: the effect has happened, and must be recorded. If what
        the execution writes with it is refused, the effect is unknown."""
        pause, refusals = SHORTEST_PAUSE, 0
        while True:
            claim = run.claim
            try:
                await report(claim)
            except (StoreError, WritingRefused) as error:
                if self._closing:
                    return
                refusals += isinstance(error, WritingRefused)
                if refusals == MOST_REFUSALS:
                    refusals, run.succeeded = 0, False
                    unknown = OutcomeUnknown(f"what it writes with its completion was refused: {error}")
                    report = self._unknown(run, unknown)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                # A newer claim may have taken the run over during the report.
                if run.claim is claim:
                    return

    def _needs_permit(self, config: DispatchConfig) -> bool:
        """Whether executions of this type need a permit."""
        execute = self._registry[config.item_type].execute if config.item_type in self._registry else None
        return needs_turn(execute, config, self._limits) and not is_open(execute, config)

    def _turn_of(self, item_type: str, config: DispatchConfig) -> DownstreamTurn | None:
        execute = self._registry[item_type].execute
        return turn_of(execute, config, self._limits, self._sink.config, at_pace=self._at_pace)

    def _needs_thread(self, item_type: str) -> bool:
        on_thread = self._on_thread.get(item_type)
        if on_thread is None:
            if item_type not in self._registry:
                return False
            on_thread = self._on_thread[item_type] = needs_thread(self._registry[item_type].execute)
        return on_thread

    # -- the kill switch -----------------------------------------------------------------------------------------

    async def _recall(self) -> None:
        """Gives back executions that have not begun: of a type whose kill switch is off, at once; of others when they
        have waited for a place so long that another process may have one."""
        while True:
            await asyncio.sleep(SWITCH_SECONDS)
            waiting = {run.claim.item_type for run in self._runs.values() if not run.begun}
            # All at once, so that the store can read their switches together.
            off = {item_type for item_type, on in zip(waiting, await self._switches(waiting), strict=True) if not on}
            if off:
                await asyncio.sleep(0)  # a task cancelled before its first step would give nothing back
            for run in self._runs.values():
                if run.claim.item_type in off:
                    self._recall_run(run, OFF)
            for item_type, threads in self._places.abandoned.items():
                self._observer.abandoned(item_type, threads)
            longest = uptime() - MAX_WAIT_FOR_PLACE
            for run in self._runs.values():
                if run.waits_since is not None and run.waits_since < longest:
                    self._recall_run(run, NO_PLACE)

    async def _switches(self, item_types: Iterable[str]) -> list[bool]:
        """The kill switches. One that can't be read counts as on: while the store can't be read, nothing begins."""

        async def is_on(item_type: str) -> bool:
            with contextlib.suppress(StoreError, NotFound):
                return await self._sink.enabled(item_type)
            return True

        return await asyncio.gather(*map(is_on, item_types))

    def _recall_run(self, run: Run, reason: str) -> None:
        waits = not (run.begun or run.executed or run.lost or run.recalled)
        if waits and run.task is not None:
            run.recalled = reason
            run.task.cancel()

    # -- cancelled by an operator --------------------------------------------------------------------------------

    async def _stop_cancelled(self) -> None:
        """Cancels executions whose claims this process has lost: any process may cancel an item, and heartbeats are
        many seconds apart."""
        watched: set[Run] = set()
        while True:
            await asyncio.sleep(CANCEL_SECONDS)
            # Executions that began since the last check are left out: most end before the next one.
            runs = [run for run in self._runs.values() if run in watched and not (run.executed or run.lost)]
            watched = {run for run in self._runs.values() if run.begun}
            if runs:
                with contextlib.suppress(StoreError):
                    await self._stop_lost(runs)

    async def _stop_lost(self, runs: Sequence[Run]) -> None:
        claims = [run.claim for run in runs]
        for run, claim, is_held in zip(runs, claims, await self._sink.holds(claims), strict=True):
            if not is_held and run.claim is claim:
                await self.stop([claim], running=True)

    # -- heartbeats ----------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        while True:
            self._heartbeat_interval = min(
                (heartbeat_interval(run.request) for run in self._runs.values()), default=LONGEST_HEARTBEAT
            )
            with contextlib.suppress(TimeoutError):
                # Ends early for a run that needs a shorter interval.
                await asyncio.wait_for(self._shorter_interval.wait(), self._heartbeat_interval)
            self._shorter_interval.clear()
            # Half of it: else a run that began just after a heartbeat would get none for almost two intervals.
            due = [run for run in self._runs.values() if uptime() - run.seen >= self._heartbeat_interval / 2]
            if due:
                with contextlib.suppress(StoreError):
                    await self._touch(due)

    async def _touch(self, runs: Sequence[Run]) -> None:
        await asyncio.sleep(0)  # a task cancelled before its first step would not clear up
        claims, sent_at = [run.claim for run in runs], uptime()
        alive = await self._sink.alive(claims)
        for run, claim, is_held in zip(runs, claims, alive, strict=True):
            if run.claim is not claim:
                continue
            if is_held:
                run.seen = sent_at
            elif not run.executed and not run.lost and run.task is not None:
                # Lost to another dispatcher, which runs it now: stop, unless only the report is missing.
                run.lost = True
                run.task.cancel()
