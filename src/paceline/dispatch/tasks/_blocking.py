# Generated from dispatch/tasks/tasks.py by scripts/generate_blocking.py. Do not edit.
"""`BlockingTasks`: the same calls for threads, without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ParamSpec, TypeVar

from paceline.background import listed
from paceline.dispatch.tasks.background_tasks import BackgroundTasks
from paceline.dispatch.tasks.task import Task, TaskCall

P = ParamSpec("P")
R = TypeVar("R")


class BlockingTasks(BackgroundTasks):
    """The calls of a `Tasks` without `await`: `tasks.blocking`.

        tasks.blocking.define()
        send_invoice.blocking.enqueue("inv-1")

    Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.
    """

    def define(self) -> None:
        """Writes the tasks' settings to the database. Workers do so when they start, and an enqueue if needed. On
        SQLite, call it once before the first enqueue in a transaction of yours.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return self._run(lambda tasks: tasks.define())

    def batch(
        self, calls: Iterable[TaskCall], *, then: Task[..., Any], key: str | None = None, connection: Any = None
    ) -> str:
        """Queues a group of calls, and a call of `then` for when all have ended: succeeded, dead letters, or cancelled.
        `then` gets a `BatchOutcome` as its first argument. Returns the batch's key; the calls have the ids `{key}:0`,
        `{key}:1` …, the callback `{key}:done`. A second batch with the same key and calls changes nothing.

            key = tasks.batch([render.call(page) for page in pages], then=all_rendered)

        Raises:
            InvalidInput: a call, the key or the connection is wrong, or the key was used for other calls; nothing was
                queued.
            StoreUnavailable: the store does not answer; call it again with the same key.
        """
        calls = listed(calls)
        return self._run_within(connection, lambda tasks: tasks.batch(calls, then=then, key=key, connection=connection))

    def chain(
        self, first: TaskCall, *following: TaskCall | Task[..., Any], key: str | None = None, connection: Any = None
    ) -> str:
        """Queues calls that run one after the other: each is queued when the one before has succeeded, with its result
        as the first argument. Returns the chain's key; the calls have the ids `{key}`, `{key}:2`, `{key}:3` … A second
        chain with the same key and calls changes nothing.

            tasks.chain(fetch.call(url), resize.call_with_result(width=800), publish, key="cat")

        Raises:
            InvalidInput: a call, the key or the connection is wrong, or the key was used for other calls; nothing was
                queued.
            StoreUnavailable: the store does not answer; call it again with the same key.
        """
        return self._run_within(
            connection, lambda tasks: tasks.chain(first, *following, key=key, connection=connection)
        )
