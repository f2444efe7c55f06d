"""`Tasks`: functions as work on the dispatch queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

from paceline.dispatch.config import DEFAULT_QUEUE, OnUnknown
from paceline.dispatch.downstream_turn import downstream_of
from paceline.dispatch.encryption import encryption_of
from paceline.dispatch.model import EnqueueRequest, EnqueueResult
from paceline.dispatch.periodic.periodic_tasks import checked_name
from paceline.dispatch.periodic.schedules import CatchUp, Schedule
from paceline.dispatch.ports import DispatchObserver
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Execute
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.tasks.batches import batch_requests, chain_request
from paceline.dispatch.tasks.declarations import Declared, declare_schedules, declared_config
from paceline.dispatch.tasks.execution import CANCEL_SECONDS, EventListener, Middleware, TaskExecution
from paceline.dispatch.tasks.in_memory import InMemory
from paceline.dispatch.tasks.inquiries import Inquiry, checked_unknown
from paceline.dispatch.tasks.locks import Lock
from paceline.dispatch.tasks.policies import (
    Backoff,
    Duration,
    Exponential,
    checked_backoff,
    checked_call_timeout,
    checked_grace,
    checked_timeout,
)
from paceline.dispatch.tasks.related_items import RelatedItems
from paceline.dispatch.tasks.task import CallOptions, Definition, Task, TaskCall, request_of, request_with
from paceline.dispatch.tasks.unique import checked_unique, new_id
from paceline.dispatch.turns import checked_lane, checked_priority
from paceline.dispatch.worker.dispatching import dispatching
from paceline.dispatch.worker.engine import GRACE_SECONDS
from paceline.dispatch.worker.pace import MAX_PREFETCH
from paceline.dispatch.worker.places import DEFAULT_CONCURRENCY, DEFAULT_THREADS
from paceline.downstream.downstream import Downstream
from paceline.downstream.first_of import FirstOf
from paceline.errors import ConfigurationError, InvalidInput, StoreUnavailable
from paceline.options import check_wait, is_whole
from paceline.service_client import is_service
from paceline.slots.calendars import Calendar
from paceline.slots.model import checked_id

if TYPE_CHECKING:
    from paceline.dispatch.engines.temporal.client import TemporalConnection
    from paceline.dispatch.tasks._blocking import BlockingTasks

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_RETRIES = 4
MAX_RETRIES = 999
DEFINING_SECONDS = 2.0
"""How long a call in a transaction on SQLite waits to make its task known to the database, which has one writer."""


class RunOptions(TypedDict, total=False):
    """The options of `Tasks.run` and `Tasks.running`."""

    queues: Collection[str] | None
    concurrency: int | None
    observer: DispatchObserver | None
    temporal: TemporalConnection | None


@dataclass(slots=True)
class _OnLoop:
    """The state of one event loop."""

    queue: DispatchQueue | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    defining: asyncio.Lock = field(default_factory=asyncio.Lock)
    defined: set[str] = field(default_factory=set)
    downstreams: set[Downstream | FirstOf] = field(default_factory=set)


_borrowed: ContextVar[_OnLoop | None] = ContextVar("paceline_borrowed_queue", default=None)
"""The queue of another event loop, which this thread uses in a transaction."""


class Tasks:
    """Functions that workers run, on the dispatch queue in the database at `url`.

        tasks = Tasks("sqlite:///work.db")

        @tasks.task(retries=5, timeout=30, rate="50/second")
        async def send_invoice(invoice_id: str) -> str: ...

    `paceline worker my_module:tasks` runs them. In one process, at most `concurrency` executions run at once, of which
    at most `threads` are plain `def` functions. A process holds only items that it can start within a moment, and of a
    task at most `prefetch` beyond those that run. When it stops, running executions have `grace` to end. `middleware`
    is called around every execution, the first one outermost. `on_event` is called with every `TaskEvent`. With
    `encryption_keys`, each base64 of 32 bytes, arguments and results are encrypted at rest: the first key encrypts, all
    decrypt. With a service's URL, such as `https://paceline.internal`, and a `token`, calls are queued and looked at
    over HTTP; workers need the database's own URL.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        threads: int = DEFAULT_THREADS,
        prefetch: int | None = None,
        grace: Duration = GRACE_SECONDS,
        middleware: Sequence[Middleware] = (),
        on_event: EventListener | None = None,
        cancel_seconds: float = CANCEL_SECONDS,
        encryption_keys: Sequence[str] | None = None,
        token: str | None = None,
    ) -> None:
        if not isinstance(url, str) or ":" not in url:
            raise ConfigurationError(
                "url", "must be a database URL such as sqlite:///work.db or postgresql://host/name"
            )
        for option, value in (("concurrency", concurrency), ("threads", threads)):
            _check_count(option, value)
        if prefetch is not None and (not is_whole(prefetch) or not 0 <= prefetch <= MAX_PREFETCH):
            raise ConfigurationError("prefetch", f"must be a whole number from 0 to {MAX_PREFETCH}")
        check_wait("cancel_seconds", cancel_seconds)
        encryption_of(encryption_keys)  # rejects a wrong key here, where it is given
        self._encryption_keys = encryption_keys
        self._token = token
        self.url = url
        self._concurrency = concurrency
        self._threads = threads
        self._prefetch = prefetch
        self._grace = checked_grace(grace)
        self._middleware = tuple(middleware)
        self._listeners = () if on_event is None else (on_event,)
        self._cancel_seconds = cancel_seconds
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._periodic: dict[str, Declared] = {}
        self._states: dict[asyncio.AbstractEventLoop, _OnLoop] = {}
        self._blocking: BlockingTasks | None = None
        self._in_memory: InMemory | None = None

    # -- defining ------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: Duration | None = None,
        rate: str | None = None,
        backoff: Backoff | None = None,
        priority: int | None = None,
        lane: str | None = None,
        concurrency: int | None = None,
        lane_concurrency: int | None = None,
        queue: str = DEFAULT_QUEUE,
        unique: str | None = None,
        unique_period: Duration | None = None,
        downstream: Downstream | FirstOf | None = None,
        on_unknown: str = OnUnknown.RETRY,
        inquire: Inquiry | None = None,
        hold_for: Duration | None = None,
        workflow: type | None = None,
        activities: Iterable[Callable[..., Any]] = (),
        guarded: Iterable[str] | None = None,
        lock: str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: Duration | None = None,
        rate: str | None = None,
        backoff: Backoff | None = None,
        priority: int | None = None,
        lane: str | None = None,
        concurrency: int | None = None,
        lane_concurrency: int | None = None,
        queue: str = DEFAULT_QUEUE,
        unique: str | None = None,
        unique_period: Duration | None = None,
        downstream: Downstream | FirstOf | None = None,
        on_unknown: str = OnUnknown.RETRY,
        inquire: Inquiry | None = None,
        hold_for: Duration | None = None,
        workflow: type | None = None,
        activities: Iterable[Callable[..., Any]] = (),
        guarded: Iterable[str] | None = None,
        lock: str | None = None,
    ) -> Any:
        """Makes a function a task: `@tasks.task` or `@tasks.task(retries=5, …)`.

        It runs once and is retried up to `retries` times after failures, with pauses by `backoff`. An execution longer
        than `timeout` is cancelled, and if it does not end then, abandoned. With `rate`, such as `50/second`, no more
        executions begin in any such span, over all processes on this database. The item type is the function's name,
        or `name`, in upper case.

        `priority` and `lane` are the defaults of its calls. At most `concurrency` of its items are in flight at once,
        over all processes, and `lane_concurrency` per lane. `queue` is the named queue of the task: a worker may serve
        some of them. With `unique="arguments"`, calls with the same arguments are one item, and with `while_waiting`
        as long as that waits; with `unique_period`, calls with the same key or arguments are one item per period.

        With `downstream`, each execution is a call of it: the worker waits for its turn, and the body begins at once
        when it has it. The body ends, or is cancelled, within the downstream's `call_timeout`, which is the default of
        `timeout`.

        `on_unknown` decides what follows an attempt that began, and whose effect nobody knows: its worker died, it ran
        beyond its timeout, or it raised `OutcomeUnknown`. It is retried (`retry`); the function `inquire` is called
        before any retry, with the item's id and the arguments (`inquire`); or nothing runs until somebody resolves the
        item (`hold`). What nobody decides within `hold_for`, a day by default, is a dead letter.

        On Temporal, `workflow` is the workflow class that runs instead of the function, with the item's id and its
        arguments as JSON, and `activities` are what it calls; those named in `guarded`, or else all, wait for `rate`.

        With `lock`, such as `invoice:{number}`, one of the calls with the same name runs at a time, over all tasks and
        workers; the others wait in line. In the name, `{number}` stands for that argument.

        Raises:
            ConfigurationError: an option or the function's signature is wrong, or the name is taken.
        """
        if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= MAX_RETRIES:
            raise ConfigurationError("retries", f"must be a whole number from 0 to {MAX_RETRIES}")
        seconds, policy = checked_timeout(timeout), checked_backoff(Exponential() if backoff is None else backoff)
        seconds = checked_call_timeout(seconds, downstream)
        same, unknown = checked_unique(unique, unique_period), checked_unknown(on_unknown, inquire, hold_for)
        try:
            checked_lane(lane)
            checked_priority(priority)
        except InvalidInput as error:
            raise ConfigurationError(error.field, error.problem) from None

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            item_type = (function.__name__ if name is None else name).upper()
            if item_type in self._tasks:
                raise ConfigurationError("name", f"two tasks have the item type {item_type}; give one of them a name=")
            config = declared_config(
                item_type,
                retries,
                rate=rate,
                concurrency=concurrency,
                lane_concurrency=lane_concurrency,
                queue=queue,
                **unknown,
            )
            names, turn = None if guarded is None else tuple(guarded), Lock.of(lock, function)
            own = workflow, tuple(activities), names
            definition = Definition(config, seconds, policy, priority, lane, same, downstream, inquire, *own, turn)
            task = Task(self, function, definition)
            self._tasks[item_type] = task
            return task

        return decorate if function is None else decorate(function)

    def periodic(
        self,
        *,
        cron: str | None = None,
        every: str | timedelta | float | None = None,
        zone: str | None = None,
        calendar: Calendar | dict[str, Any] | None = None,
        catch_up: str = CatchUp.SKIP,
        name: str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Makes a function, or a task, run periodically: `@tasks.periodic(cron="0 16 * * MON-FRI")` or
        `@tasks.periodic(every="PT2S")`.

        Each tick is queued once, however many workers run. A cron expression is in the time zone `zone`. A tick outside
        the open time of `calendar` is left out. `catch_up` decides which ticks are queued that were missed because no
        worker ran: `skip`, `last` or `all`. The periodic task has the function's name, or `name`.

        Raises:
            ConfigurationError: an option is wrong, the name is taken, or the function needs arguments.
        """
        schedule = Schedule.of(cron=cron, every=every, zone=zone, calendar=calendar, catch_up=catch_up)

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            task = function if isinstance(function, Task) else self.task(function)
            if missing := task.arguments.required():
                raise ConfigurationError(missing[0], "has no default, and nobody gives a periodic task its arguments")
            periodic_name = task.function.__name__ if name is None else name
            try:
                checked_name(periodic_name)
            except InvalidInput as error:
                raise ConfigurationError(error.field, error.problem) from None
            if periodic_name in self._periodic:
                raise ConfigurationError("name", f"two periodic tasks are named {periodic_name}; give one a name=")
            definition = task.definition
            self._periodic[periodic_name] = Declared(task.item_type, schedule, definition.lane, definition.priority)
            return task

        return decorate

    @property
    def item_types(self) -> list[str]:
        """The item types of its tasks."""
        return list(self._tasks)

    def domains(self) -> list[Domain]:
        """Each task as a `Domain`, for callers that run them without `run`."""
        return [self._domain(task) for task in self._tasks.values()]

    def _domain(self, task: Task[Any, Any]) -> Domain:
        made = task.definition
        return Domain(made.config, self._execution(task), made.workflow, made.activities, made.guarded)

    def _execution(self, task: Task[Any, Any]) -> TaskExecution:
        definition = task.definition
        return TaskExecution(
            task.function,
            task.arguments,
            definition.timeout,
            definition.backoff,
            self._middleware,
            self._listeners,
            self._cancel_seconds,
            RelatedItems(self),
            definition.downstream,
            definition.inquire,
        )

    @property
    def blocking(self) -> BlockingTasks:
        """The same calls for threads, without `await`: from Flask, Django views and scripts. All threads share it."""
        if self._blocking is None:
            from paceline.dispatch.tasks._blocking import BlockingTasks

            self._blocking = BlockingTasks(self)
        return self._blocking

    def _on_loop(self) -> _OnLoop:
        if (borrowed := _borrowed.get()) is not None:
            return borrowed
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None:
            for closed in [known for known in [*self._states] if known.is_closed()]:
                self._states.pop(closed, None)
            state = self._states[loop] = _OnLoop()
        return state

    # -- queueing ------------------------------------------------------------------------------------------------

    async def queue(self) -> DispatchQueue:
        """The tasks' queue, opened at first use. Each event loop has its own."""
        if self._in_memory is not None:
            return self._in_memory.queue
        state = self._on_loop()
        if state.queue is None:
            async with state.opening:
                if state.queue is None:
                    state.queue = await state.stack.enter_async_context(
                        DispatchQueue.open(self.url, encryption_keys=self._encryption_keys, token=self._token)
                    )
        return state.queue

    async def define(self) -> None:
        """Writes the tasks' settings to the database. Workers do so when they start, and an enqueue if needed. On
        SQLite, call it once before the first enqueue in a transaction of yours.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        await self._defining(self._tasks)

    async def _defining(self, item_types: Iterable[str]) -> None:
        queue, state = await self.queue(), self._on_loop()
        async with state.defining:
            for item_type in item_types:
                # Checked under the lock: concurrent first calls define it once.
                if item_type not in state.defined:
                    await queue.define(self._tasks[item_type].definition.config)
                    state.defined.add(item_type)

    async def _ready(self, item_types: Collection[str], connection: Any = None) -> DispatchQueue:
        """The queue, once these tasks are known to its database."""
        state = self._on_loop()
        if state.queue is not None and state.defined.issuperset(item_types):
            return state.queue
        if connection is None or not self.url.startswith("sqlite"):
            await self._defining(item_types)
            return await self.queue()
        try:
            async with asyncio.timeout(DEFINING_SECONDS):
                await self._defining(item_types)
        except (TimeoutError, StoreUnavailable):
            raise InvalidInput(
                "connection",
                "its transaction writes, and the task is not known to the database yet: call `tasks.define()` once "
                "before your first transaction",
            ) from None
        return await self.queue()

    @contextmanager
    def borrowed(self, state: _OnLoop) -> Iterator[None]:
        """Inside the block, this thread uses the queue of another event loop, without waiting for it."""
        token = _borrowed.set(state)
        try:
            yield
        finally:
            _borrowed.reset(token)

    async def lend(self, connection: Any) -> _OnLoop:
        """This event loop's queue for a thread that uses it in a transaction; all tasks are known to the database."""
        if self._in_memory is None:
            await self._ready(self._tasks, connection)
        return self._on_loop()

    async def enqueue_item(self, task: Task[Any, Any], context: Any, options: CallOptions) -> EnqueueResult:
        """Queues an item of a task, for `Task.enqueue`."""
        request = request_with(task, context, options)
        if self._in_memory is not None:
            self._check_in_memory(options.connection)
            return (await self._in_memory.enqueue_requests([request]))[0]
        queue = await self._ready((task.item_type,), options.connection)
        return await queue.enqueue_request(request, connection=options.connection)

    async def enqueue_calls(
        self, task: Task[Any, Any], calls: Sequence[TaskCall], connection: Any
    ) -> list[EnqueueResult]:
        """Queues checked calls of a task, for `Task.enqueue_many`."""
        requests = [request_of(call) for call in calls]
        if self._in_memory is not None:
            self._check_in_memory(connection)
            return [*await self._in_memory.enqueue_requests(requests)]
        queue = await self._ready((task.item_type,), connection)
        return [*await queue.enqueue_requests(requests, connection=connection)]

    def _check_in_memory(self, connection: Any) -> None:
        if connection is not None:
            raise InvalidInput("connection", "a queue in memory can't join a database transaction")

    async def batch(
        self, calls: Iterable[TaskCall], *, then: Task[..., Any], key: str | None = None, connection: Any = None
    ) -> str:
        """Queues a group of calls, and a call of `then` for when all have ended: succeeded, dead letters, or cancelled.
        `then` gets a `BatchOutcome` as its first argument. Returns the batch's key; the calls have the ids `{key}:0`,
        `{key}:1` …, the callback `{key}:done`. A second batch with the same key and calls changes nothing.

            key = await tasks.batch([render.call(page) for page in pages], then=all_rendered)

        Raises:
            InvalidInput: a call, the key or the connection is wrong, or the key was used for other calls; nothing was
                queued.
            StoreUnavailable: the store does not answer; call it again with the same key.
        """
        key = new_id() if key is None else checked_id(key, "key")
        head, members = batch_requests(calls, then, key)
        await self._queue_group(head, members, connection, {request.item_type for request in (head, *members)})
        return key

    async def chain(
        self, first: TaskCall, *following: TaskCall | Task[..., Any], key: str | None = None, connection: Any = None
    ) -> str:
        """Queues calls that run one after the other: each is queued when the one before has succeeded, with its result
        as the first argument. Returns the chain's key; the calls have the ids `{key}`, `{key}:2`, `{key}:3` … A second
        chain with the same key and calls changes nothing.

            await tasks.chain(fetch.call(url), resize.call_with_result(width=800), publish, key="cat")

        Raises:
            InvalidInput: a call, the key or the connection is wrong, or the key was used for other calls; nothing was
                queued.
            StoreUnavailable: the store does not answer; call it again with the same key.
        """
        key = new_id() if key is None else checked_id(key, "key")
        links = [link.call_with_result() if isinstance(link, Task) else link for link in following]
        head = chain_request([first, *links], key)
        await self._queue_group(head, [], connection, {call.task.item_type for call in (first, *links)})
        return key

    async def _queue_group(
        self, head: EnqueueRequest, members: Sequence[EnqueueRequest], connection: Any, item_types: set[str]
    ) -> None:
        if unknown := item_types.difference(self._tasks):
            raise InvalidInput("calls", f"{sorted(unknown)[0]} is no task of this Tasks object")
        if self._in_memory is not None:
            self._check_in_memory(connection)
            await self._in_memory.enqueue_group(head, members)
            return
        queue = await self._ready(item_types, connection)
        await queue.enqueue_group(head, members, connection=connection)

    async def queue_next(self, request: EnqueueRequest) -> None:
        """Queues the next call of a chain. Its task may be known to a newer version of the program only, which queued
        the chain and so wrote the task's settings."""
        if self._in_memory is not None:
            await self._in_memory.enqueue_requests([request])
            return
        known = [request.item_type] if request.item_type in self._tasks else []
        await (await self._ready(known)).enqueue_requests([request])

    async def close(self) -> None:
        """Closes the queue, and the downstreams that workers called, if they were opened on this event loop. The next
        use opens them again."""
        state = self._states.pop(asyncio.get_running_loop(), None)
        if state is not None:
            await state.stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, **options: Unpack[RunOptions]) -> None:
        """Runs tasks in this process until `stop` is set; then gives running tasks the grace period, and releases the
        rest. With `queues`, it runs the tasks of these named queues only, and with `concurrency` that many at
        once. With `temporal`, each execution is a workflow there, and this process a worker of it.

        Raises:
            ConfigurationError: there is no task, or none in these queues, or an annotation of one can't be used.
            StoreUnavailable: Temporal does not answer.
        """
        async with self.running(**options):
            await stop.wait()

    @asynccontextmanager
    async def running(self, **options: Unpack[RunOptions]) -> AsyncIterator[list[str]]:
        """Runs tasks inside the block, as `run` does. Gives the item types that it serves."""
        if is_service(self.url):
            raise ConfigurationError(
                "url", "leads to a service, where tasks are queued; workers need the database's own"
            )
        if not self._tasks:
            raise ConfigurationError("tasks", "there is no task; decorate a function with @tasks.task()")
        for task in self._tasks.values():
            task.arguments.check()
        if (concurrency := options.get("concurrency")) is not None:
            _check_count("concurrency", concurrency)
        queue = await self.queue()
        served = await self._served(queue, options.get("queues"))
        self._close_with_queue(domain.execute for domain in served)
        async with StartLimits.open(self.url) as limits, self._dispatching(queue, served, limits, options):
            await declare_schedules(queue, self._periodic)
            yield [domain.item_type for domain in served]

    async def declare(self, queue: DispatchQueue) -> None:
        """Writes the settings and schedules of all tasks to a queue, for callers that run them without `run`; their
        downstreams are closed with the tasks."""
        await self._served(queue, None)
        await declare_schedules(queue, self._periodic)
        self._close_with_queue(domain.execute for domain in self.domains())

    def _close_with_queue(self, served: Iterable[Execute]) -> None:
        """The downstreams that this event loop calls are closed when its queue is."""
        state = self._on_loop()
        for downstream in {downstream_of(execute) for execute in served} - {None, *state.downstreams}:
            if downstream is not None:
                state.downstreams.add(downstream)
                state.stack.push_async_callback(downstream.close)

    async def _served(self, queue: DispatchQueue, queues: Iterable[str] | None) -> list[Domain]:
        """The tasks in these queues, by their settings now: an operator may have moved one."""
        wanted = None if queues is None else set(queues)
        found: set[str] = set()
        served: list[Domain] = []
        for domain in self.domains():
            name = (await queue.declare(domain.config)).queue
            found.add(name)
            if wanted is None or name in wanted:
                served.append(domain)
        if wanted is not None and (unknown := sorted(wanted - found)):
            raise ConfigurationError(
                "queues", f"no task is in the queue {unknown[0]!r}; there are {', '.join(sorted(found))}"
            )
        return served

    def _dispatching(
        self, queue: DispatchQueue, domains: Sequence[Domain], limits: StartLimits, options: RunOptions
    ) -> AbstractAsyncContextManager[Any]:
        observer, temporal = options.get("observer"), options.get("temporal")
        concurrency = options.get("concurrency") or self._concurrency
        if temporal is None:
            return dispatching(
                queue,
                domains,
                limits=limits,
                observer=observer,
                concurrency=concurrency,
                threads=self._threads,
                prefetch=self._prefetch,
                grace=self._grace,
            )
        # Imported here: the SDK is an extra.
        from paceline.dispatch.engines.temporal.dispatching import dispatching_on_temporal

        encryption = encryption_of(self._encryption_keys)
        return dispatching_on_temporal(
            temporal,
            queue,
            domains,
            limits=limits,
            observer=observer,
            concurrency=concurrency,
            threads=self._threads,
            encryption=encryption,
        )

    @asynccontextmanager
    async def in_memory(self, *, run: bool = True) -> AsyncIterator[InMemory]:
        """For tests: inside the block, tasks use a queue in memory, and each `enqueue` runs all queued items at once.

            async with tasks.in_memory():
                await send_invoice.options(key="inv-1").enqueue("inv-1")
                assert (await send_invoice.show("inv-1")).result == "sent"

        `enqueue` returns when its item, and all items that it queued, have ended: times, snoozes and backoff pass at
        once, and rates do not apply. With `run=False` nothing runs before `await queue.run()`.

            async with tasks.in_memory(run=False) as queue:
                await send_invoice.enqueue("inv-1")
                queue.assert_enqueued(send_invoice, "inv-1")
        """
        if self._in_memory is not None:
            raise RuntimeError("in_memory() is entered already")
        async with InMemory.open(self.domains(), runs=run) as self._in_memory:
            try:
                yield self._in_memory
            finally:
                self._in_memory = None


def _check_count(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10_000:
        raise ConfigurationError(option, "must be a whole number from 1 to 10000")
