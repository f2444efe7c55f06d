"""`Task`: one function and its queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import update_wrapper
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import EnqueueResult, ItemDetail
from paceline.dispatch.tasks.arguments import RESERVED, Arguments
from paceline.dispatch.tasks.batches import TaskCall
from paceline.dispatch.tasks.policies import Backoff
from paceline.dispatch.tasks.unique import NOT_UNIQUE, Unique
from paceline.errors import ConfigurationError
from paceline.limits.model import Plan

if TYPE_CHECKING:
    from paceline.dispatch.tasks.tasks import Tasks

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Definition:
    """The options of `@tasks.task(…)`."""

    config: DispatchConfig
    plan: Plan | None
    timeout: float | None
    backoff: Backoff
    priority: int | None = None
    lane: str | None = None
    unique: Unique = NOT_UNIQUE


class CallOptions(NamedTuple):
    """The options of an enqueue."""

    key: str | None = None
    at: datetime | str | None = None
    priority: int | None = None
    lane: str | None = None
    connection: Any = None


NO_OPTIONS = CallOptions()


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it in this process; `enqueue` queues a call of it.

    `@tasks.task()` makes one.
    """

    def __init__(self, tasks: Tasks, function: Callable[P, R], definition: Definition) -> None:
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise ConfigurationError("function", f"{function.__name__!r} is a generator, which nothing would run")
        update_wrapper(self, function)
        self._tasks = tasks
        self.function = function
        self.definition = definition
        self.arguments = Arguments(function)

    @property
    def item_type(self) -> str:
        """The item type of its items: the function's name in upper case."""
        return self.definition.config.item_type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    # A type checker can't add keywords to a ParamSpec: calls with options take any arguments, and are checked when they
    # are made; `options(…).enqueue(…)` is checked by type checkers too.
    @overload
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult: ...

    @overload
    async def enqueue(
        self,
        *args: Any,
        key: str,
        at: datetime | str | None = None,
        priority: int | None = None,
        lane: str | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> EnqueueResult: ...

    @overload
    async def enqueue(
        self,
        *args: Any,
        at: datetime | str,
        key: str | None = None,
        priority: int | None = None,
        lane: str | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> EnqueueResult: ...

    @overload
    async def enqueue(
        self,
        *args: Any,
        priority: int,
        key: str | None = None,
        at: datetime | str | None = None,
        lane: str | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> EnqueueResult: ...

    @overload
    async def enqueue(
        self,
        *args: Any,
        lane: str,
        key: str | None = None,
        at: datetime | str | None = None,
        priority: int | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> EnqueueResult: ...

    @overload
    async def enqueue(
        self,
        *args: Any,
        connection: Any,
        key: str | None = None,
        at: datetime | str | None = None,
        priority: int | None = None,
        lane: str | None = None,
        **kwargs: Any,
    ) -> EnqueueResult: ...

    async def enqueue(self, *args: Any, **kwargs: Any) -> EnqueueResult:
        """Queues a call of the function with these arguments. `key`, the item's id, makes it idempotent: a second
        enqueue of the same key changes nothing and returns `existing=True`. `at` is the time at which it runs.
        `priority` is 0 (first) to 9. `lane` is a tenant, say, whose calls take turns with those of others. The
        decorator has the defaults. With `connection`, in a transaction of yours (see `DispatchQueue.enqueue`), it is
        queued if and when that commits; on SQLite, call `await tasks.define()` once before.

        Raises:
            InvalidInput: an argument, the key, the time, the priority, the lane or the connection is wrong; nothing
                was queued.
            StoreUnavailable: the store does not answer; the call may have been queued.
        """
        options = NO_OPTIONS
        if kwargs and not RESERVED.isdisjoint(kwargs):
            options = CallOptions(**{name: kwargs.pop(name) for name in RESERVED if name in kwargs})
        return await self._tasks.enqueue_item(self, self.arguments.dump(args, kwargs), options)

    def options(
        self,
        *,
        key: str | None = None,
        at: datetime | str | None = None,
        priority: int | None = None,
        lane: str | None = None,
        connection: Any = None,
    ) -> Call[P]:
        """The options of an enqueue, apart from its arguments: `task.options(key="a").enqueue(1)`. Type checkers then
        check the arguments."""
        return Call(self, CallOptions(key, at, priority, lane, connection))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """A call with these arguments, for `Tasks.batch` and `Tasks.chain`. It is not queued."""
        return TaskCall(self, args, kwargs)

    def call_with_result(self, *args: Any, **kwargs: Any) -> TaskCall:
        """A call in a chain whose first argument is the result of the call before; these are the others."""
        return TaskCall(self, args, kwargs)

    async def show(self, item_id: str) -> ItemDetail:
        """One of its items: status, attempt, progress, result, audit.

        Raises:
            NotFound: there is no such item.
        """
        return await (await self._tasks.queue()).show(self.item_type, item_id)


@dataclass(frozen=True, slots=True)
class Call(Generic[P]):
    """An enqueue with options and without arguments yet."""

    _task: Task[P, Any]
    _options: CallOptions

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """`Task.enqueue` with these options."""
        task = self._task
        return await task._tasks.enqueue_item(task, task.arguments.dump(args, kwargs), self._options)
