"""`current_task`: what a running task knows about itself, and how it reports progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.dispatch.model import Claim, Progress, Writing
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY
from paceline.dispatch.worker.threads import run_on_thread
from paceline.errors import Conflict, StoreUnavailable

if TYPE_CHECKING:
    from paceline.dispatch.downstream_turn import DownstreamTurn
    from paceline.dispatch.ports import OutcomeSink
    from paceline.dispatch.worker.places import Place

R = TypeVar("R")

log = logging.getLogger("paceline.dispatch")

_current: ContextVar[CurrentTask | None] = ContextVar("paceline_current_task", default=None)


def never() -> bool:
    return False


class CurrentTask:
    """The item that is being executed: its type, id, attempt, lane, priority and deadline.

    await current_task().progress(0.5, "half way")
    """

    def __init__(
        self,
        claim: Callable[[], Claim],
        sink: OutcomeSink,
        lane: str = DEFAULT_LANE,
        priority: int = DEFAULT_PRIORITY,
        place: Place | None = None,
        stopping: Callable[[], bool] = never,
        turn: DownstreamTurn | None = None,
        writes: bool = False,
    ) -> None:
        self._claim = claim
        self._writes = writes
        self._stopping = stopping
        self._abandoned = False
        self._place = place
        self.turn = turn
        self.lane = lane
        """A tenant, say."""
        self.priority = priority
        """Within its lane: 0 first, 9 last."""
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self.deadline: datetime | None = None
        """When its timeout ends it; None if it has no timeout."""
        self.in_doubt = False
        """Whether an earlier attempt began, and nobody knows its effect."""
        self.is_last_inquiry = False
        """Whether the item is a dead letter if the inquiry decides nothing."""
        self.is_used_up = False
        """Whether its attempts are used up, so that an inquiry is all that may follow."""
        self.writings: tuple[Writing, ...] = ()
        """What `complete_with` was given."""

    @property
    def item_type(self) -> str:
        return self._claim().item_type

    @property
    def item_id(self) -> str:
        return self._claim().item_id

    @property
    def attempt(self) -> int:
        """Counted from 1. A snoozed task runs again under the same number."""
        return self._claim().retries + 1

    @property
    def stopping(self) -> bool:
        """Whether its worker ends: the task has the grace period to come to an end, or raises `Snooze` to go on
        elsewhere. Callable from a `def` task's thread."""
        return self._stopping()

    @property
    def cancelled(self) -> bool:
        """Whether its outcome has no effect any more: the item was cancelled, taken over by another worker, or timed
        out. A `def` task, which can't be interrupted, should ask from time to time, and return."""
        timed_out = self.deadline is not None and datetime.now(UTC) >= self.deadline
        return timed_out or self._abandoned

    @property
    def call(self) -> DownstreamTurn:
        """The execution's call of its downstream, to `settle` its costs, or to say that it was `answered` or `refused`.
        Callable from a `def` task's thread.

        Raises:
            RuntimeError: the task has no downstream.
        """
        if self.turn is None or not self.turn.has_downstream:
            raise RuntimeError(f"{self.item_type} has no downstream; give it one by @tasks.task(downstream=…)")
        return self.turn

    async def run_on_thread(self, function: Callable[[], R], *, timeout: float | None = None) -> R:
        """What a plain function returns or raises, on the thread that this execution holds."""
        try:
            if self._place is None:
                return await run_on_thread(function, timeout=timeout)
            return await self._place.run(function, timeout=timeout)
        except (asyncio.CancelledError, TimeoutError):
            self._abandoned = True  # its thread goes on, and may ask
            raise

    async def decided(self) -> None:
        """An inquiry decided what became of the attempts in doubt.

        Raises:
            Conflict: the item is no longer this execution's.
        """
        if not await self._sink.decided(self._claim()):
            raise Conflict(f"{self.item_type} {self.item_id} is no longer this execution's")
        self.in_doubt = False

    def complete_with(
        self, write: Callable[[Any, Sequence[Any]], object], record: Any, *, even_if_lost: bool = False
    ) -> None:
        """When the task has returned, its item is completed and the record written in one transaction: both or none.
        `write` gets the queue's connection (SQLAlchemy's, for plain `execute`), and the records of all executions with
        the same `write` that are completed together. Callable from a `def` task's thread.

            current_task().complete_with(save_invoices, invoice)

        If the task raises, nothing is written. Nor is it if the item is no longer this execution's, unless
        `even_if_lost`: then the record may be written twice. If the database keeps refusing what it writes, the outcome
        of the attempt is unknown.

        Raises:
            RuntimeError: its engine completes items elsewhere.
        """
        if not self._writes:
            raise RuntimeError("complete_with() is for tasks that a worker runs in its own process, not on Temporal")
        self.writings += (Writing(write, record, even_if_lost),)

    def progress(self, fraction: float, text: str = "") -> ProgressReport:
        """Records how far the task is, from 0 to 1, with a text. `await` it in an `async def` task; in a `def` task,
        call it without `await`. If the store is unavailable the report is dropped, and the task continues.

        Raises:
            InvalidInput: the fraction or the text is wrong.
            Conflict: the item is no longer this execution's: it timed out, or another process took it over. Stop.
        """
        report = self._report(Progress.of(fraction, text))
        try:
            on_the_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_the_loop = False
        if on_the_loop:
            return ProgressReport(report)
        asyncio.run_coroutine_threadsafe(report, self._loop).result()
        return ProgressReport(None)

    async def _report(self, progress: Progress) -> None:
        try:
            is_held = await self._sink.progress(self._claim(), progress)
        except StoreUnavailable as error:
            log.warning("the progress of %s %s was not recorded: %s", self.item_type, self.item_id, error)
            return
        if not is_held:
            raise Conflict(f"{self.item_type} {self.item_id} is no longer this execution's")


class ProgressReport:
    """A progress report: to be awaited on the event loop, and already written in a thread."""

    def __init__(self, report: Coroutine[Any, Any, None] | None) -> None:
        self._report = report

    def __await__(self) -> Generator[Any, None, None]:
        if self._report is not None:
            yield from self._report.__await__()


def current_task() -> CurrentTask:
    """The task that calls this.

    Raises:
        RuntimeError: no task is running here.
    """
    current = _current.get()
    if current is None:
        raise RuntimeError("current_task() is for use inside a task that a worker runs")
    return current


def current_claim() -> Claim | None:
    """The claim under which the caller's task runs; None if no task is running here."""
    current = _current.get()
    return None if current is None else current._claim()


def is_inside_task() -> bool:
    """Whether a task is running here."""
    return _current.get() is not None


def enter_task(current: CurrentTask) -> None:
    """Makes it the current task of this asyncio task."""
    _current.set(current)
