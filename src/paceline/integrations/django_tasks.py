"""`PacelineBackend`: `django.tasks` on the dispatch queue, also for the backport `django-tasks`.

    TASKS = {
        "default": {
            "BACKEND": "paceline.integrations.django_tasks.PacelineBackend",
            "OPTIONS": {"url": "postgresql://db/shop"},
        }
    }

`DJANGO_SETTINGS_MODULE=shop.settings paceline worker paceline.integrations.django_tasks:tasks` runs the tasks of the
backend `default`.
"""

from __future__ import annotations

import builtins
from datetime import datetime
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError, NotFound
from paceline.extras import needed

with needed("paceline.integrations.django_tasks", "django"):
    from django.db import close_old_connections, connections, transaction
    from django.utils import timezone
    from django.utils.module_loading import import_string
with needed("paceline.integrations.django_tasks", "queue"):
    from paceline.dispatch.current_task import current_task
    from paceline.dispatch.model import ItemDetail
    from paceline.dispatch.status import Status
    from paceline.dispatch.tasks.task import Task
    from paceline.dispatch.tasks.tasks import Tasks

if TYPE_CHECKING:
    tasks: Tasks

try:
    _django: Any = import_module("django.tasks")
except ImportError:  # before Django 6
    _django = import_module("django_tasks")
_base: Any = import_module(f"{_django.__name__}.base")
_backends: Any = import_module(f"{_django.__name__}.backends.base")
_exceptions: Any = import_module(f"{_django.__name__}.exceptions")

OPTIONS = ("url", "database", "retries", "concurrency", "threads", "encryption_keys")
LOWEST, HIGHEST = -100, 100
"""Django's priorities: the highest is first."""
STATUSES = {Status.READY: "READY", Status.COMPLETED: "SUCCESSFUL"} | dict.fromkeys(
    (Status.DEAD_LETTER, Status.CANCELLED), "FAILED"
)


class PacelineBackend(_backends.BaseTaskBackend):  # type: ignore[misc]
    """A backend of `django.tasks` whose `OPTIONS` are `url`, the queue's database, and what `Tasks` takes.

    With `database`, an alias of `DATABASES` that leads to the same database, a task that is enqueued inside
    `transaction.atomic()` is queued if and when that commits. Django's tasks are not retried; `retries` changes that.

    Raises:
        ConfigurationError: an option is unknown or wrong.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise ConfigurationError(f"TASKS[{alias!r}].OPTIONS", f"has an unknown {unknown[0]!r}; known are {OPTIONS}")
        if "url" not in options:
            raise ConfigurationError(f"TASKS[{alias!r}].OPTIONS", "needs the url of the queue's database")
        self._database = options.pop("database", None)
        retries = options.pop("retries", 0)
        self.tasks = Tasks(**options)
        self._by_queue: dict[tuple[str, bool], Task[..., Any]] = {}
        for queue in sorted(self.queues):
            for is_async, execute in ((False, self._execute), (True, self._execute_async)):
                name = f"DJANGO_{queue}" + ("_ASYNC" if is_async else "")
                made = self.tasks.task(name=name, queue=queue, retries=retries)
                self._by_queue[queue, is_async] = made(execute)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Queues a call of the task."""
        self.validate_task(task)
        connection = None
        if self._database is not None and transaction.get_connection(self._database).in_atomic_block:
            connection = connections[self._database]
        queue_task = self._by_queue[task.queue_name, iscoroutinefunction(task.func)]
        call = queue_task.options(priority=_priority(task.priority), at=task.run_after, connection=connection)
        queued = call.blocking.enqueue(task.module_path, list(args), dict(kwargs))
        return self._result(task, queued.item_id, "READY", list(args), dict(kwargs))

    def get_result(self, result_id: str) -> Any:
        """The state of a call, and what it returned, as long as its item is kept."""
        for queue_task in self._by_queue.values():
            try:
                detail = queue_task.blocking.show(result_id)
            except NotFound:
                continue
            return self._result_of(detail, queue_task)
        raise _exceptions.TaskResultDoesNotExist(result_id)

    def _result_of(self, detail: ItemDetail, queue_task: Task[..., Any]) -> Any:
        item = detail.item
        said = detail.result if item.status is Status.COMPLETED else detail.context
        if not isinstance(said, dict):
            # A cancelled item, or a result that was too large, has lost its call.
            raise _exceptions.TaskResultDoesNotExist(item.item_id)
        result = self._result(
            import_string(said["path"]),
            item.item_id,
            STATUSES.get(item.status, "RUNNING"),
            said["args"],
            said["kwargs"],
            enqueued_at=item.created_at,
            started_at=item.dispatched_at,
            finished_at=item.completed_at or (item.updated_at if item.status is Status.DEAD_LETTER else None),
            last_attempted_at=item.dispatched_at,
            errors=[_error(item.last_error)] if item.status is Status.DEAD_LETTER else [],
            worker_ids=[item.worker or queue_task.item_type] * item.attempt,
        )
        object.__setattr__(result, "_return_value", said.get("value"))
        return result

    def _result(
        self,
        task: Any,
        result_id: str,
        status: str,
        args: list[Any],
        kwargs: dict[str, Any],
        **more: Any,
    ) -> Any:
        times: dict[str, datetime | None] = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
        given = {"enqueued_at": timezone.now(), **times, "errors": [], "worker_ids": [], **more}
        return _base.TaskResult(
            task=task,
            id=result_id,
            status=_base.TaskResultStatus(status),
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            **given,
        )

    # -- in a worker -----------------------------------------------------------------------------------------------

    def _execute(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        close_old_connections()
        try:
            task = import_string(path)
            value = task.func(*self._given(task, args, kwargs), **kwargs)
        finally:
            close_old_connections()
        return {"path": path, "args": args, "kwargs": kwargs, "value": value}

    async def _execute_async(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        task = import_string(path)
        value = await task.func(*self._given(task, args, kwargs), **kwargs)
        return {"path": path, "args": args, "kwargs": kwargs, "value": value}

    def _given(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        if not task.takes_context:
            return args
        current = current_task()
        attempts = [current.item_type] * current.attempt
        result = self._result(task, current.item_id, "RUNNING", args, kwargs, worker_ids=attempts)
        return [_base.TaskContext(task_result=result), *args]


def __getattr__(name: str) -> Any:
    """`tasks`: those of the backend `default`, for `paceline worker paceline.integrations.django_tasks:tasks`."""
    if name != "tasks":
        raise AttributeError(name)
    import django

    django.setup()
    backend = _django.default_task_backend
    if not isinstance(getattr(backend, "tasks", None), Tasks):
        raise ConfigurationError("TASKS", "the backend 'default' is no PacelineBackend")
    return backend.tasks


def _priority(priority: int) -> int:
    """From -100, which is last, to 100, as 9 to 0; 0 is the default, 5."""
    share = (HIGHEST - priority) / (HIGHEST - LOWEST)
    return 5 if priority == 0 else min(9, int(share * 10))


def _error(text: str | None) -> Any:
    """The error of a dead letter. The queue keeps its text: a class of the program's own is shown as `Exception`."""
    name = (text or "").partition(":")[0]
    kind = getattr(builtins, name, None)
    known = isinstance(kind, type) and issubclass(kind, BaseException)
    return _base.TaskError(exception_class_path=f"builtins.{name if known else 'Exception'}", traceback=text or "")
