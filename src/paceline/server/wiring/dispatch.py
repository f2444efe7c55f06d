"""Item types, and executing them in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from paceline.dispatch.meter import QueueMeter
from paceline.dispatch.ports import DispatchObserver, WorkflowEngine
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.tasks.tasks import Tasks
from paceline.dispatch.worker.dispatching import dispatching
from paceline.dispatch.worker.engine import GRACE_SECONDS
from paceline.errors import ConfigurationError
from paceline.server.setting_sections import DispatchSettings
from paceline.server.settings import Settings, spelled
from paceline.server.shutdown import closing_part
from paceline.server.wiring.database import embedded_url
from paceline.server.wiring.queue import open_queue
from paceline.sql.url import database_url


class OwnTasks(NamedTuple):
    """The tasks of installed packages and of the settings, for a process that works for applications, too."""

    tasks: Sequence[Tasks]
    registry: Registry

    async def declare(self, queue: DispatchQueue) -> None:
        """Writes their settings and schedules."""
        for tasks in self.tasks:
            await tasks.declare(queue)

    async def close(self) -> None:
        """Closes what they have opened."""
        for tasks in self.tasks:
            await tasks.close()


def load_own(settings: Settings) -> OwnTasks:
    """The tasks that this process runs beside the applications' work: those of installed packages (entry points
    `paceline.domains`) and those the settings name.

    Raises:
        ConfigurationError: some can't be loaded, are on another database, or have the same item type.
    """
    named = [name.strip() for name in settings.dispatch.domains.split(",") if name.strip()]
    tasks = [_loaded(name, settings) for name in [*_installed_domains(), *named]]
    return OwnTasks(tasks, Registry(*(domain for each in tasks for domain in each.domains())))


@cache
def _installed_domains() -> tuple[str, ...]:
    """Cached: a lookup reads the metadata of every installed package."""
    return tuple(point.value for point in entry_points(group="paceline.domains"))


def load_tasks(name: str) -> Tasks:
    """The `Tasks` of `module:name`.

    Raises:
        ConfigurationError: it can't be imported, or is something else.
    """
    try:
        value = _imported(name, "tasks")
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError("MODULE:NAME", f"{name!r} can't be loaded: {error}") from error
    if not isinstance(value, Tasks):
        raise ConfigurationError("MODULE:NAME", f"{name!r} is no Tasks object; write for example tasks = Tasks(url)")
    return value


def _imported(name: str, default: str) -> Any:
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`: finds modules of the working directory
    return getattr(import_module(module), attribute or default)


def _loaded(name: str, settings: Settings) -> Tasks:
    setting = spelled("dispatch", "domains")
    try:
        value = _imported(name, "tasks")
        if callable(value):
            value = value(settings)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(setting, f"{name!r} can't be loaded: {error}") from error
    if not isinstance(value, Tasks):
        raise ConfigurationError(setting, f"{name!r} is no Tasks object and makes none; write tasks = Tasks(url)")
    if _place(value.url) != _place(settings.database_url):
        raise ConfigurationError(
            setting,
            f"{name!r} is on another database than PACELINE_DATABASE_URL; give both the same, or run its own worker",
        )
    return value


def _place(url: str) -> Any:
    """What two URLs of the same database have in common."""
    if url.startswith("memory:"):
        return url
    place = database_url(url)
    if place.get_backend_name() == "sqlite" and place.database:
        return Path(place.database).resolve()
    return place.host, place.port, place.database


@asynccontextmanager
async def local_dispatch(
    queue: DispatchQueue,
    domains: Iterable[Domain],
    *,
    limits: StartLimits | None = None,
    observer: DispatchObserver | None = None,
    settings: DispatchSettings | None = None,
    shutdown_seconds: float | None = None,
) -> AsyncIterator[WorkflowEngine]:
    """Dispatches and executes items of these domains in this process while the block runs. On exit it lets executions
    finish within a grace period, part of `shutdown_seconds`, and gives the rest back."""
    settings = settings or DispatchSettings()
    if shutdown_seconds is None:
        shutdown_seconds = settings.shutdown_seconds
    async with dispatching(
        queue,
        domains,
        limits=limits,
        observer=observer,
        concurrency=settings.concurrency,
        threads=settings.threads,
        prefetch=settings.prefetch,
        max_context_bytes=settings.claim_bytes,
        grace=closing_part(shutdown_seconds, GRACE_SECONDS),
    ) as engine:
        yield engine


@asynccontextmanager
async def open_dispatch(
    settings: Settings, *, observer: DispatchObserver | None = None
) -> AsyncIterator[DispatchQueue]:
    """The queue of a service, measured; the domains of the settings are dispatched beside it, if it is configured
    to."""
    own = load_own(settings)
    inline = settings.dispatch.worker == "inline" or (
        settings.dispatch.worker == "auto" and settings.temporal_address is None
    )
    async with open_queue(settings) as queue, AsyncExitStack() as running:
        running.push_async_callback(own.close)
        await own.declare(queue)
        if observer is not None:
            metering = asyncio.create_task(QueueMeter(queue.store, observer).run())
            running.callback(metering.cancel)
        if inline and len(own.registry):
            await running.enter_async_context(
                local_dispatch(
                    queue,
                    own.registry,
                    limits=await running.enter_async_context(StartLimits.open(embedded_url(settings))),
                    observer=observer,
                    settings=settings.dispatch,
                    shutdown_seconds=settings.http.shutdown_seconds,
                )
            )
        yield queue
