"""The bases of `BlockingTasks`, `BlockingTask` and `BlockingCall`: tasks on an event loop in the background."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from paceline.background import Background
from paceline.dispatch.background_queue import check_blocking, run_inline
from paceline.dispatch.tasks.task import Call, Task

if TYPE_CHECKING:
    from paceline.dispatch.tasks.tasks import Tasks

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class BackgroundTasks:
    """Calls from any number of threads share the queue of one event loop. A forked child opens its own."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._background: Background[Tasks] = Background(lambda: tasks)

    def close(self) -> None:
        """Lets accepted calls be written, then closes the queue of the blocking calls. A later call opens it again."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Callable[[Tasks], Coroutine[Any, Any, T]]) -> T:
        return self._background.run(call)

    def _run_within(self, connection: Any, call: Callable[[Tasks], Coroutine[Any, Any, T]]) -> T:
        """With a connection, `call` runs in this thread: Django's and sqlite3's may be used in no other."""
        if connection is None:
            return self._run(call)
        check_blocking(connection)
        state = self._run(lambda tasks: tasks.lend(connection))
        with self._tasks.borrowed(state):
            return run_inline(call(self._tasks))


class BackgroundTask(Generic[P, R]):
    """Runs the calls of a task as `BackgroundTasks` does."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def _run(self, call: Callable[[Task[P, R]], Coroutine[Any, Any, T]]) -> T:
        return self._task.tasks.blocking._run(lambda _tasks: call(self._task))


class BackgroundCall(Generic[P]):
    """Runs a call with options, in the transaction of its connection if it has one."""

    def __init__(self, call: Call[P]) -> None:
        self._call = call

    def _run(self, call: Callable[[Call[P]], Coroutine[Any, Any, T]]) -> T:
        blocking = self._call.task.tasks.blocking
        return blocking._run_within(self._call.given.connection, lambda _tasks: call(self._call))
