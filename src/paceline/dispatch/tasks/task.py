"""`Task`: one function and its queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import update_wrapper
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import EnqueueRequest, EnqueueResult, ItemDetail
from paceline.dispatch.outcomes import checked_pause
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.arguments import NOT_KEPT, Arguments
from paceline.dispatch.tasks.inquiries import Inquiry
from paceline.dispatch.tasks.locks import Lock
from paceline.dispatch.tasks.policies import Backoff, Duration
from paceline.dispatch.tasks.unique import NOT_UNIQUE, Unique, checked_words
from paceline.downstream.downstream import Downstream
from paceline.downstream.first_of import FirstOf
from paceline.durations import parse_instant
from paceline.errors import ConfigurationError, InvalidInput, NotFound, TaskFailed
from paceline.slots.model import AssignedSlot

if TYPE_CHECKING:
    from paceline.dispatch.tasks._blocking_task import BlockingCall, BlockingTask
    from paceline.dispatch.tasks.tasks import Tasks

P = ParamSpec("P")
R = TypeVar("R")

SHORTEST_LOOK, LONGEST_LOOK = 0.01, 0.5
"""Seconds between two looks of a caller who waits for a result."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The options of `@tasks.task(…)`."""

    config: DispatchConfig
    timeout: float | None
    backoff: Backoff
    priority: int | None = None
    lane: str | None = None
    unique: Unique = NOT_UNIQUE
    downstream: Downstream | FirstOf | None = None
    inquire: Inquiry | None = None
    workflow: type | None = None
    activities: tuple[Callable[..., Any], ...] = ()
    guarded: tuple[str, ...] | None = None
    lock: Lock | None = None

    def lock_of(self, given: str | None, context: Mapping[str, Any]) -> str | None:
        """The lock of a call with this context: its own, or the task's."""
        return self.lock.name(context) if given is None and self.lock is not None else given


class CallOptions(NamedTuple):
    """The options of an enqueue."""

    key: str | None = None
    at: datetime | str | None = None
    priority: int | None = None
    lane: str | None = None
    connection: Any = None
    unique: str | None = None
    slot: AssignedSlot | None = None
    lock: str | None = None


NO_OPTIONS = CallOptions()


class TaskCall(NamedTuple):
    """A call that is not queued yet. `Task.call` makes one."""

    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: CallOptions = NO_OPTIONS


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it in this process; `enqueue` queues a call of it.

    `@tasks.task()` makes one.
    """

    def __init__(self, tasks: Tasks, function: Callable[P, R], definition: Definition) -> None:
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise ConfigurationError("function", f"{function.__name__!r} is a generator, which nothing would run")
        update_wrapper(self, function)
        self.tasks = tasks
        self.function = function
        self.definition = definition
        self.arguments = Arguments(function)

    @property
    def item_type(self) -> str:
        """The item type of its items: the function's name in upper case."""
        return self.definition.config.item_type

    @property
    def blocking(self) -> BlockingTask[P, R]:
        """The same calls for threads, without `await`: from Flask, Django views and scripts."""
        from paceline.dispatch.tasks._blocking_task import BlockingTask

        return BlockingTask(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Queues a call of the function with these arguments. `options` has what is not an argument: a key, a time.

        Raises:
            InvalidInput: an argument is wrong; nothing was queued.
            StoreUnavailable: the store does not answer; the call may have been queued.
        """
        return await self.tasks.enqueue_item(self, self.arguments.dump(args, kwargs), NO_OPTIONS)

    async def enqueue_many(self, calls: Iterable[Any]) -> list[EnqueueResult]:
        """Queues many calls: all are checked before any is written; up to 5000 are written in one transaction. In
        `calls`, a tuple has positional arguments, a dict the arguments by name, a `TaskCall` also options, and
        anything else is the only argument.

            await send.enqueue_many(["inv-1", ("inv-2", 3), send.options(key="c").call("inv-3")])

        Raises:
            InvalidInput: a call is wrong; nothing was queued.
            StoreUnavailable: the store does not answer; some calls may have been queued.
        """
        return await self.tasks.enqueue_calls(self, calls_of(self, calls, NO_OPTIONS), None)

    def options(
        self,
        *,
        key: str | None = None,
        at: datetime | str | None = None,
        priority: int | None = None,
        lane: str | None = None,
        connection: Any = None,
        unique: str | None = None,
        slot: AssignedSlot | None = None,
        lock: str | None = None,
    ) -> Call[P]:
        """The options of a call, apart from its arguments: `task.options(key="a").enqueue(1)`.

        `key`, the item's id, makes it idempotent: a second enqueue of the same key changes nothing and returns
        `existing=True`. `at` is the time at which it runs. `priority` is 0 (first) to 9. `lane` is a tenant, say,
        whose calls take turns with those of others. With `lock`, such as `invoice:7`, it runs while no other call of
        this lock does, of any task, on any worker; they wait in line. The decorator has the defaults, also of `unique`.
        With `slot`, it runs in a slot that was booked, and moves when that is re-planned: book it under the key.

            slot = await slots.assign("inv-1", "invoices", due)
            await send_invoice.options(key="inv-1", slot=slot).enqueue("inv-1")

        With `connection`, in a transaction of yours (see `DispatchQueue.enqueue`), it is queued if and when that
        commits. On SQLite the task must be known to the database before: a worker or `tasks.define()` writes it.

        Raises:
            InvalidInput: `unique` is unknown. The other options are checked when a call is queued.
        """
        if unique is not None:
            checked_words(unique, InvalidInput)
        return Call(self, CallOptions(key, at, priority, lane, connection, unique, slot, lock))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """A call with these arguments, for `enqueue_many`, `Tasks.batch` and `Tasks.chain`. It is not queued."""
        return TaskCall(self, args, kwargs)

    def call_with_result(self, *args: Any, **kwargs: Any) -> TaskCall:
        """A call in a chain whose first argument is the result of the call before; these are the others."""
        return TaskCall(self, args, kwargs)

    async def result(self, item_id: str, *, timeout: Duration | None = None) -> Any:
        """What an item's execution returned, by the function's annotation; waits until the item has ended, at most
        `timeout`.

            await task.result("inv-1", timeout=10)

        Raises:
            TaskFailed: the item is a dead letter or was cancelled.
            NotFound: there is no such item, or its result was too large to be kept.
            TimeoutError: it has not ended within `timeout`.
            InvalidInput: the timeout is wrong, or the result does not fit the function's annotation.
        """
        until = None if timeout is None else time.monotonic() + checked_pause(timeout, "timeout").total_seconds()
        queue, pause = await self.tasks.queue(), SHORTEST_LOOK
        while True:
            item = await queue.find(self.item_type, item_id)
            if item.status is Status.COMPLETED:
                detail = await queue.show(self.item_type, item_id)
                if any((entry.detail or "").startswith(NOT_KEPT) for entry in detail.audit[-5:]):
                    raise NotFound("result of item", item_id)
                return None if detail.result is None else self.arguments.result_of(detail.result)
            if item.status in (Status.DEAD_LETTER, Status.CANCELLED):
                raise TaskFailed(self.item_type, item_id, item.status.value, item.last_error)
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"{self.item_type} {item_id} is {item.status.value} after {timeout}")
            await asyncio.sleep(left)
            pause = min(pause * 1.5, LONGEST_LOOK)

    async def show(self, item_id: str) -> ItemDetail:
        """One of its items: status, attempt, progress, result, audit.

        Raises:
            NotFound: there is no such item.
        """
        return await (await self.tasks.queue()).show(self.item_type, item_id)


@dataclass(frozen=True, slots=True)
class Call(Generic[P]):
    """A call with options and without arguments yet. `Task.options` makes one."""

    task: Task[P, Any]
    given: CallOptions

    @property
    def blocking(self) -> BlockingCall[P]:
        """The same calls for threads, without `await`; with `connection`, in the transaction of the calling thread."""
        from paceline.dispatch.tasks._blocking_task import BlockingCall

        return BlockingCall(self)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """`Task.call` with these options."""
        return TaskCall(self.task, args, kwargs, self.given)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """`Task.enqueue` with these options.

        Raises:
            InvalidInput: an argument, the key, the time, the priority, the lane or the connection is wrong; nothing
                was queued.
            StoreUnavailable: the store does not answer; the call may have been queued.
        """
        return await self.task.tasks.enqueue_item(self.task, self.task.arguments.dump(args, kwargs), self.given)

    async def enqueue_many(self, calls: Iterable[Any]) -> list[EnqueueResult]:
        """`Task.enqueue_many` with these options; with `connection`, all calls in one transaction of yours.

        Raises:
            InvalidInput: a call or an option is wrong, or a key is given, which only one call can have; nothing was
                queued.
            StoreUnavailable: the store does not answer; some calls may have been queued.
        """
        if self.given.key is not None:
            raise InvalidInput("key", "is one call's; give each its own: task.options(key=…).call(…)")
        return await self.task.tasks.enqueue_calls(
            self.task, calls_of(self.task, calls, self.given), self.given.connection
        )


def calls_of(task: Task[..., Any], calls: Iterable[Any], options: CallOptions) -> list[TaskCall]:
    """The calls that `enqueue_many` was given, each with its arguments and options.

    Raises:
        InvalidInput: they are no list, or one of them is a call of another task or has a connection of its own.
    """
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
        raise InvalidInput(
            "calls", "must be a list: a tuple, a dict, a task.call(…) or a single argument for each call"
        )
    listed: list[TaskCall] = []
    for number, call in enumerate(calls, 1):
        if isinstance(call, TaskCall):
            if call.task is not task:
                raise InvalidInput("calls", f"number {number} is a call of {call.task.item_type}, not {task.item_type}")
            if call.options.connection is not None:
                raise InvalidInput("connection", "is that of all calls: task.options(connection=…).enqueue_many(…)")
            given = {name: value for name, value in call.options._asdict().items() if value is not None}
            listed.append(call._replace(options=options._replace(**given)))
        elif isinstance(call, tuple):
            listed.append(TaskCall(task, call, {}, options))
        elif isinstance(call, dict):
            listed.append(TaskCall(task, (), call, options))
        else:
            listed.append(TaskCall(task, (call,), {}, options))
    return listed


def request_of(call: TaskCall) -> EnqueueRequest:
    """The item of a call.

    Raises:
        InvalidInput: an argument or an option is wrong.
    """
    return request_with(call.task, call.task.arguments.dump(call.args, call.kwargs), call.options)


def request_with(task: Task[..., Any], context: Any, options: CallOptions) -> EnqueueRequest:
    """The item of a call with these arguments as its context.

    Raises:
        InvalidInput: an option is wrong.
    """
    definition = task.definition
    if options.slot is None:
        moment = None if options.at is None else parse_instant(options.at, "at")
    elif options.at is None:
        moment = options.slot.scheduled_time
    else:
        raise InvalidInput("at", "or a slot: give one of the two")
    unique = definition.unique.chosen(options.unique)
    return EnqueueRequest.of(
        task.item_type,
        unique.item_id(options.key, context, moment),
        context,
        moment,
        slot=options.slot,
        lane=definition.lane if options.lane is None else options.lane,
        priority=definition.priority if options.priority is None else options.priority,
        while_waiting=unique.while_waiting,
        lock=definition.lock_of(options.lock, context),
    )
