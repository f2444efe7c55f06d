"""`paceline worker`: dispatches and executes items, and does the applications' work, outside the service."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import click

from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.tasks.tasks import RunOptions, Tasks
from paceline.errors import ConfigurationError
from paceline.server import logs
from paceline.server.apps import app_roles, check_apps, part
from paceline.server.cli.parameters import Argument, Command, completing
from paceline.server.cli.serve import listen, permit
from paceline.server.cli.terminal import print_status, run
from paceline.server.opened_apps import AppContext, open_apps
from paceline.server.settings import Settings
from paceline.server.shutdown import SIGNALS, closing_part, stop_on_signals
from paceline.server.wiring.database import embedded_url, shared_database
from paceline.server.wiring.dispatch import OwnTasks, load_own, load_tasks, local_dispatch
from paceline.server.wiring.doctor import server_probes
from paceline.server.wiring.queue import open_dispatch_observer, open_queue
from paceline.server.wiring.requirements import require_extras
from paceline.server.wiring.slots import open_slots
from paceline.server.wiring.telemetry import collect_traces, traces_sent
from paceline.server.wiring.temporal import temporal_connection
from paceline.server.worker import end_process, run_temporal_workers
from paceline.sql.databases import CLOSING_SECONDS, hasten_databases
from paceline.sql.schema import now

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Role(StrEnum):
    """What a worker does. Applications have roles of their own (`App.roles`)."""

    DISPATCH = "dispatch"
    INIT = "init"
    EXEC = "exec"
    ALL = "all"


def _roles() -> list[str]:
    """All roles: those of the applications before `all`."""
    return [*(role.value for role in Role if role is not Role.ALL), *app_roles(), Role.ALL.value]


def _or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


@click.command("worker", cls=Command)
@click.argument(
    "work",
    cls=Argument,
    default=Role.ALL.value,
    metavar="[ROLE|MODULE:NAME]",
    shell_complete=completing([*Role, *app_roles()]),
    about=f"Which work to do: {_or(_roles())}; or tasks of your own, such as my_app:tasks.",
)
@click.option("--domain", "domains", multiple=True, help="Tasks of your own, as package.module:name.")
@click.option("--queues", help="Of your own tasks, run those in these named queues only: default,mail.")
@click.option("--concurrency", type=int, help="How many of your own tasks run at once in this process.")
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics on this port.")
@click.option("--migrate", is_flag=True, help="Migrate the database first, also one that other programs share.")
def worker(
    work: str,
    domains: tuple[str, ...],
    queues: str | None,
    concurrency: int | None,
    metrics_port: int | None,
    migrate: bool,
) -> None:
    """Work until stopped (Ctrl+C, SIGTERM); what is in flight is finished or given back first.

    With Temporal, dispatch, init and exec are workers of their own. Without it, one process dispatches and executes.
    MODULE:NAME is a Tasks object: its tasks run in this process, on the database that it names; with Temporal, as
    activities of workflows.
    """
    settings = Settings.load()
    permit(settings, migrate)
    if ":" in work:
        options = RunOptions(queues=None if queues is None else _names(queues), concurrency=concurrency)
        _run_tasks(settings, work, domains, metrics_port, options)
        return
    for option, value in (("--queues", queues), ("--concurrency", concurrency)):
        if value is not None:
            raise ConfigurationError(option, "is for tasks of your own: paceline worker MODULE:NAME")
    chosen = _role(work)
    if domains:
        named = ",".join([*filter(None, [settings.dispatch.domains]), *domains])
        settings = settings.model_copy(update={"dispatch": settings.dispatch.model_copy(update={"domains": named})})
    if settings.temporal_address is None and chosen in (Role.INIT, Role.EXEC):
        raise ConfigurationError(
            "ROLE", f"{work} needs Temporal (PACELINE_TEMPORAL_ADDRESS); without it use dispatch, which also executes"
        )
    require_extras(settings, *([] if metrics_port is None else ["server"]))
    logs.configure(settings)
    collect_traces(settings)
    logs.warn_unknown_variables()
    check_apps(settings)
    run(_work(settings, chosen, None if metrics_port is None else _MetricsListener.on(settings, metrics_port)))
    _ignore_signals()
    if settings.temporal_address is not None:
        end_process()


def _role(name: str) -> str:
    if name not in _roles():
        raise ConfigurationError(
            "ROLE", f"{name!r} is unknown; use {', '.join(_roles())}, or MODULE:NAME for tasks of your own"
        )
    return name


def _names(queues: str) -> list[str]:
    names = [name.strip() for name in queues.split(",") if name.strip()]
    if not names:
        raise ConfigurationError("--queues", "must name a queue, such as default,mail")
    return names


def _ignore_signals() -> None:
    """Called at the end: a second signal must not change the exit status."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def _run_tasks(
    settings: Settings, name: str, domains: tuple[str, ...], metrics_port: int | None, options: RunOptions
) -> None:
    if domains:
        raise ConfigurationError("--domain", "is for item types; start another worker for them")
    require_extras(settings, *([] if metrics_port is None else ["server"]))
    logs.configure(settings)
    collect_traces(settings)
    logs.warn_unknown_variables()
    tasks = load_tasks(name)
    own = settings.model_copy(update={"database_url": tasks.url})
    shown = None if metrics_port is None else _MetricsListener.on(own, metrics_port)
    run(_work_on_tasks(settings, tasks, name, shown, options))
    _ignore_signals()
    if settings.temporal_address is not None:
        end_process()


async def _work_on_tasks(
    settings: Settings, tasks: Tasks, name: str, shown: _MetricsListener | None, options: RunOptions
) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop, settings.dispatch.shutdown_seconds)
    registry = None if shown is None else shown.registry
    own = settings.model_copy(update={"database_url": tasks.url})
    temporal = None if settings.temporal_address is None else temporal_connection(settings)
    async with (
        traces_sent(),
        _show(shown),
        open_dispatch_observer(own, registry) as observer,
        tasks,
        tasks.running(**options | {"observer": observer, "temporal": temporal}) as served,
    ):
        print_status(f"paceline worker {name} is working on {', '.join(served)}")
        for item_type, ready in (await (await tasks.queue()).unserved(served)).items():
            print_status(f"nobody serves {item_type}: {ready} items are READY, and no worker runs that knows it")
        await _hasten(settings, stop)


async def _work(settings: Settings, role: str, shown: _MetricsListener | None) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop, settings.dispatch.shutdown_seconds)
    registry = None if shown is None else shown.registry

    def started() -> None:
        print_status(f"paceline worker {role} is working")

    async with traces_sent(), _database_ready(settings), _show(shown):
        working: list[asyncio.Task[None]] = []
        own = app_roles()
        if role not in own:
            roles = {"dispatch", "init", "exec"} if role == Role.ALL else {role}
            tasks = load_own(settings)
            working.append(asyncio.create_task(_dispatch(settings, roles, tasks, stop, registry, started)))
        else:
            started()
        for name, place in own.items():
            if role in (name, Role.ALL):
                working.append(asyncio.create_task(part(place)(settings, stop, registry=registry)))
        hastening = asyncio.create_task(_hasten(settings, stop))
        try:
            await asyncio.gather(*working)
        finally:
            # If one failed, the others shut down gracefully before the failure is raised.
            stop.set()
            await asyncio.gather(*working, hastening, return_exceptions=True)


async def _dispatch(
    settings: Settings,
    roles: Collection[str],
    own: OwnTasks,
    stop: asyncio.Event,
    registry: CollectorRegistry | None,
    started: Callable[[], None],
) -> None:
    async with (
        open_dispatch_observer(settings, registry) as observer,
        StartLimits.open(embedded_url(settings)) as limits,
        open_slots(settings) as slots,
        open_queue(settings) as queue,
        open_apps(
            AppContext(
                settings=settings,
                slots=slots,
                queue=queue,
                observer=observer,
                registry=registry,
                roles=frozenset(roles),
            )
        ) as apps,
        _declared(own, queue),
    ):
        domains = Registry(*own.registry, *(domain for opened in apps.values() for domain in opened.domains))
        if settings.temporal_address is not None:
            await run_temporal_workers(
                settings, roles, domains, limits=limits, observer=observer, stop=stop, started=started
            )
            return
        async with local_dispatch(queue, domains, limits=limits, observer=observer, settings=settings.dispatch):
            started()
            await stop.wait()


@asynccontextmanager
async def _declared(own: OwnTasks, queue: DispatchQueue) -> AsyncIterator[None]:
    """The tasks' settings and schedules are written; what they open is closed when the block ends."""
    await own.declare(queue)
    try:
        yield
    finally:
        await own.close()


async def _hasten(settings: Settings, stop: asyncio.Event) -> None:
    """Shortens the timeouts of the database once the worker is stopped: a database that hangs must not delay the
    exit."""
    await stop.wait()
    hasten_databases(closing_part(settings.dispatch.shutdown_seconds, CLOSING_SECONDS))


class _MetricsListener(NamedTuple):
    """The metrics and health of a worker, and their address."""

    settings: Settings
    registry: CollectorRegistry
    listening: socket.socket

    @classmethod
    def on(cls, settings: Settings, port: int) -> _MetricsListener:
        from prometheus_client import CollectorRegistry

        return cls(settings, CollectorRegistry(), listen(settings.host, port))


@asynccontextmanager
async def _database_ready(settings: Settings) -> AsyncIterator[None]:
    """Checks the database and its schema before the worker reports that it is ready."""
    shared = await shared_database(settings)
    try:
        yield
    finally:
        await shared.close()


@asynccontextmanager
async def _show(shown: _MetricsListener | None) -> AsyncIterator[None]:
    """Serves the worker's metrics and health while the block runs, if configured."""
    if shown is None:
        yield
        return
    from paceline.server.http.worker_health import worker_health

    shared = await shared_database(shown.settings)
    probes = {"database": lambda: shared.read(now), **await server_probes(shown.settings)}
    try:
        async with worker_health(shown.listening, shown.registry, probes):
            yield
    finally:
        await shared.close()
