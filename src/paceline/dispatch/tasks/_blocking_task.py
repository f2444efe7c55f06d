# Generated from dispatch/tasks/task.py by scripts/generate_blocking.py. Do not edit.
"""`BlockingTask` and `BlockingCall`: the same calls for threads, without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ParamSpec, TypeVar

from paceline.background import listed
from paceline.dispatch.model import EnqueueResult, ItemDetail
from paceline.dispatch.tasks.background_tasks import BackgroundCall, BackgroundTask
from paceline.dispatch.tasks.policies import Duration

P = ParamSpec("P")
R = TypeVar("R")


class BlockingTask(BackgroundTask[P, R]):
    """The calls of a `Task` without `await`: `task.blocking.enqueue("inv-1")`."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Queues a call of the function with these arguments. `options` has what is not an argument: a key, a time.

        Raises:
            InvalidInput: an argument is wrong; nothing was queued.
            StoreUnavailable: the store does not answer; the call may have been queued.
        """
        return self._run(lambda task: task.enqueue(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Any]) -> list[EnqueueResult]:
        """Queues many calls: all are checked before any is written; up to 5000 are written in one transaction. In
        `calls`, a tuple has positional arguments, a dict the arguments by name, a `TaskCall` also options, and
        anything else is the only argument.

            send.enqueue_many(["inv-1", ("inv-2", 3), send.options(key="c").call("inv-3")])

        Raises:
            InvalidInput: a call is wrong; nothing was queued.
            StoreUnavailable: the store does not answer; some calls may have been queued.
        """
        calls = listed(calls)
        return self._run(lambda task: task.enqueue_many(calls))

    def result(self, item_id: str, *, timeout: Duration | None = None) -> Any:
        """What an item's execution returned, by the function's annotation; waits until the item has ended, at most
        `timeout`.

            task.result("inv-1", timeout=10)

        Raises:
            TaskFailed: the item is a dead letter or was cancelled.
            NotFound: there is no such item, or its result was too large to be kept.
            TimeoutError: it has not ended within `timeout`.
            InvalidInput: the timeout is wrong, or the result does not fit the function's annotation.
        """
        return self._run(lambda task: task.result(item_id, timeout=timeout))

    def show(self, item_id: str) -> ItemDetail:
        """One of its items: status, attempt, progress, result, audit.

        Raises:
            NotFound: there is no such item.
        """
        return self._run(lambda task: task.show(item_id))


class BlockingCall(BackgroundCall[P]):
    """The calls of a `Call` without `await`: `task.options(key="inv-1").blocking.enqueue("inv-1")`."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """`Task.enqueue` with these options.

        Raises:
            InvalidInput: an argument, the key, the time, the priority, the lane or the connection is wrong; nothing
                was queued.
            StoreUnavailable: the store does not answer; the call may have been queued.
        """
        return self._run(lambda call: call.enqueue(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Any]) -> list[EnqueueResult]:
        """`Task.enqueue_many` with these options; with `connection`, all calls in one transaction of yours.

        Raises:
            InvalidInput: a call or an option is wrong, or a key is given, which only one call can have; nothing was
                queued.
            StoreUnavailable: the store does not answer; some calls may have been queued.
        """
        calls = listed(calls)
        return self._run(lambda call: call.enqueue_many(calls))
