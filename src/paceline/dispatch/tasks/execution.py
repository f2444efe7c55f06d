"""One execution of a task's function: arguments, middleware, timeout, backoff, events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeAlias

from paceline.dispatch.current_task import CurrentTask, current_task
from paceline.dispatch.model import Completion, EnqueueRequest, GiveUp, Postponed
from paceline.dispatch.outcomes import OutcomeUnknown, Retry
from paceline.dispatch.task_errors import contained, describe, is_cancelling
from paceline.dispatch.tasks.arguments import Arguments, LoadedCall, UnknownParameter
from paceline.dispatch.tasks.batches import MEMBERS, THEN, Members, next_request
from paceline.dispatch.tasks.inquiries import Inquiry, inquired
from paceline.dispatch.tasks.policies import Backoff, pause_before
from paceline.dispatch.worker.threads import RanTooLong, is_coroutine_function
from paceline.downstream.downstream import Downstream
from paceline.downstream.first_of import FirstOf
from paceline.errors import InvalidInput, StoreUnavailable

log = logging.getLogger("paceline.dispatch")

NEWER_PAUSE = timedelta(seconds=5)
"""How long a call that a newer version queued waits before a worker looks at it again."""
CANCEL_SECONDS = 5.0
"""How long a cancelled task may clean up before it is abandoned."""

Middleware: TypeAlias = Callable[[CurrentTask, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""`async def middleware(task, run): return await run()`, around every execution."""


class TaskEventKind(StrEnum):
    """The kind of an execution's event."""

    STARTED = "STARTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Raised or timed out; it is retried, or a dead letter if retries are used up."""
    SNOOZED = "SNOOZED"
    """Released: it raised `Snooze`, or a store was unavailable."""
    DISCARDED = "DISCARDED"
    """It raised `Discard`."""


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One step of one execution, in this process. The item's audit has what was committed."""

    kind: TaskEventKind
    item_type: str
    item_id: str
    attempt: int
    seconds: float = 0.0
    """The duration of the execution."""
    error: BaseException | None = None


class Around(Protocol):
    """The items around an execution: those of its batch, and the next of its chain."""

    async def outcome(self, current: CurrentTask, members: Members) -> dict[str, Any]:
        """The callback's argument, when all are done; raises `Snooze` before."""
        ...

    async def queue_next(self, request: EnqueueRequest) -> None:
        """Queues the next call of a chain, once."""
        ...


EventListener: TypeAlias = Callable[[TaskEvent], None]


@dataclass(frozen=True, slots=True)
class TaskExecution:
    """The `execute` of a task's domain."""

    function: Callable[..., Any]
    arguments: Arguments
    timeout: float | None
    backoff: Backoff
    middleware: Sequence[Middleware] = ()
    listeners: Sequence[EventListener] = ()
    cancel_seconds: float = CANCEL_SECONDS
    around: Around | None = None
    downstream: Downstream | FirstOf | None = None
    inquiry: Inquiry | None = None

    takes_turn = True
    """Right before its function, when all else is done."""

    @property
    def inquires(self) -> bool:
        """Whether it inquires what became of an attempt in doubt."""
        return self.inquiry is not None

    @property
    def on_thread(self) -> bool:
        """Whether its function is a plain `def`."""
        return not is_coroutine_function(self.function)

    async def __call__(self, _item_id: str, context: Any) -> Completion | None:
        current, began = current_task(), time.monotonic()
        then: Any = None
        if isinstance(context, dict) and self.around is not None:
            then, members = context.pop(THEN, None), context.pop(MEMBERS, None)
            if members is not None:
                # Raises `Snooze` while calls of the batch have not ended.
                context |= await self.around.outcome(current, Members(**members))
        self._emit(current, TaskEventKind.STARTED)
        run: Callable[[], Awaitable[Any]] = partial(self._call, current, context)
        for middleware in reversed(self.middleware):
            run = partial(middleware, current, run)
        try:
            result = await run()
        except (KeyboardInterrupt, GeneratorExit):
            raise  # Ctrl-C, or its coroutine is closed
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelling():
                raise
            self._emit(current, _kind(error), time.monotonic() - began, error)
            outcome = self._outcome(current, error)
            if outcome is error:
                raise  # an error that is its own cause can't be sent to Temporal
            raise outcome from error
        if then is not None and self.around is not None:
            # Before the completion is reported: a crash in between runs this task again; the enqueue is idempotent.
            try:
                request = next_request(then, self.arguments.json_of(result))
            except InvalidInput as error:
                raise GiveUp(f"the next call can't get its result: {error}") from error
            await self.around.queue_next(request)
        self._emit(current, TaskEventKind.SUCCEEDED, time.monotonic() - began)
        return self.arguments.completion(result)

    async def _call(self, current: CurrentTask, context: Any) -> Any:
        loaded = self._loaded(current, context)
        if current.in_doubt and self.inquiry is not None:
            ask, pause = partial(self._at_turn, current, self.inquiry), partial(self._pause, current)
            if (done := await inquired(self.inquiry, current, loaded, ask, pause)) is not None:
                return done.result
            if current.turn is not None:
                raise Postponed("it was never seen, and waits for its turn again", timedelta(0))
        return await self._at_turn(current, self.function, partial(self.function, *loaded.args, **loaded.kwargs))

    async def _at_turn(self, current: CurrentTask, function: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """What `call`, a call of `function`, returns: a call of the task's downstream, if it has one."""
        if current.turn is None:
            return await self._within_timeout(current, function, call)
        return await current.turn.around(partial(self._within_timeout, current, function, call))

    async def _within_timeout(self, current: CurrentTask, function: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """As `_at_turn`, within the timeout; on a thread if the function is a plain `def`."""
        if self.timeout is not None:
            current.deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        if not is_coroutine_function(function):
            return await current.run_on_thread(call, timeout=self.timeout)
        running = contained(call())
        return await (running if self.timeout is None else self._within(self.timeout, running))

    def _loaded(self, current: CurrentTask, context: Any) -> LoadedCall:
        """The arguments. A call that a newer version queued goes back, uncounted, for a worker that knows it; one that
        no version can read is a dead letter."""
        try:
            return self.arguments.load(context)
        except UnknownParameter as error:
            log.warning(
                "%s %s goes back to the queue: %s; a worker of a newer version must run",
                current.item_type,
                current.item_id,
                error,
                extra={"item_type": current.item_type, "item_id": current.item_id},
            )
            raise Postponed(f"{error}; it waits for a worker of a newer version", NEWER_PAUSE) from error
        except InvalidInput as error:
            raise GiveUp(f"its arguments can't be read: {error}") from error

    async def _within(self, timeout: float, running: Any) -> Any:
        """Cancels it after `timeout`. If it does not end then, it is abandoned: its claim no longer waits for it."""
        current = asyncio.current_task()
        name = None if current is None else current.get_name()  # for the watch of the event loop
        task: asyncio.Task[Any] = asyncio.create_task(running, name=name)
        try:
            if (await asyncio.wait({task}, timeout=timeout))[0]:
                return task.result()
            await self._cancel(task)
            raise RanTooLong(f"it ran longer than {timeout:g} s")
        except asyncio.CancelledError:
            if not task.done():
                await self._cancel(task)
            raise

    async def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        task.add_done_callback(_look_at)
        if not (await asyncio.wait({task}, timeout=self.cancel_seconds))[0]:
            log.error("%s did not end when it was cancelled, and is abandoned", self.function.__name__)

    def _outcome(self, current: CurrentTask, error: BaseException) -> Exception:
        """The exception that the engine gets."""
        if isinstance(error, GiveUp | Postponed | StoreUnavailable):
            return error
        if isinstance(error, Retry) and error.pause() is not None:
            return error
        if isinstance(error, OutcomeUnknown | RanTooLong):
            unknown = error if isinstance(error, OutcomeUnknown) else OutcomeUnknown(f"TimeoutError: {error}")
            unknown.pause = self._pause(current)
            return unknown
        text = str(error) if isinstance(error, Retry) else describe(error)
        return Retry(text, after=self._pause(current))

    def _pause(self, current: CurrentTask) -> timedelta | None:
        """Before the next attempt; None for the item type's backoff."""
        try:
            return pause_before(self.backoff, current.attempt)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("the backoff of %s failed; the item type's own is used", current.item_type)
            return None

    def _emit(
        self, current: CurrentTask, kind: TaskEventKind, seconds: float = 0.0, error: BaseException | None = None
    ) -> None:
        if not self.listeners:
            return
        event = TaskEvent(kind, current.item_type, current.item_id, current.attempt, seconds, error)
        for listener in self.listeners:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                log.exception("a listener of task events failed")


def _kind(error: BaseException) -> TaskEventKind:
    if isinstance(error, GiveUp):
        return TaskEventKind.DISCARDED
    return TaskEventKind.SNOOZED if isinstance(error, Postponed | StoreUnavailable) else TaskEventKind.FAILED


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieves an abandoned task's error, which asyncio would log as never retrieved."""
    if not task.cancelled():
        task.exception()
