"""The workers: which run what, with which concurrency."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Interceptor, Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from paceline import tracing
from paceline.dispatch.engines.temporal.dispatcher import DispatcherActivities, DispatcherWorkflow
from paceline.dispatch.engines.temporal.interceptor import DispatchInterceptor
from paceline.dispatch.engines.temporal.item_places import ItemPlaces
from paceline.dispatch.engines.temporal.item_workflow import ItemActivities, ItemWorkflow
from paceline.dispatch.engines.temporal.outcome_activities import OutcomeActivities
from paceline.dispatch.engines.temporal.schedule import DISPATCH_TASK_QUEUE
from paceline.dispatch.engines.temporal.trace_interceptor import TraceInterceptor
from paceline.dispatch.ports import OutcomeSink
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.places import Places
from paceline.errors import ConfigurationError

# Modules the sandbox need not reload for every workflow: they keep no state and do no I/O on import. OpenTelemetry has
# the application's SDK, which records the end of a workflow.
PASSED_THROUGH = ("paceline", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "opentelemetry")


class Concurrency(NamedTuple):
    """How much one worker does at once."""

    workflow_tasks: int
    activities: int


LONGEST_HEARTBEAT_PAUSE = timedelta(seconds=4)
"""Heartbeats are sent at least this often. By default the SDK throttles them to 80 % of their timeout; if the server is
slow for the rest, it declares a live worker dead."""

DISPATCH = Concurrency(5, 10)
INIT = Concurrency(100, 200)
EXEC = Concurrency(100, 200)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What all workers of a process have in common."""

    grace: timedelta = timedelta(seconds=10)
    """How long activities in flight may take to finish after a shutdown request."""
    deployment: WorkerDeploymentConfig | None = None
    """The version this process belongs to; None for unversioned workers."""
    identity: str | None = None
    passed_through: tuple[str, ...] = ()
    """Packages that the sandbox need not reload either: those of workflows as careful as paceline's own."""

    @property
    def version(self) -> WorkerDeploymentVersion | None:
        return None if self.deployment is None else self.deployment.version


def dispatch_worker(
    client: Client,
    activities: DispatcherActivities,
    *,
    task_queue: str = DISPATCH_TASK_QUEUE,
    concurrency: Concurrency = DISPATCH,
    options: WorkerOptions | None = None,
) -> Worker:
    """Runs the dispatcher whenever its Schedules fire."""
    return _worker(client, task_queue, [DispatcherWorkflow], activities.all, concurrency, options)


def exec_worker(
    client: Client,
    task_queue: str,
    domains: Sequence[Domain],
    sink: OutcomeSink,
    *,
    limits: StartLimits | None = None,
    concurrency: Concurrency = EXEC,
    places: Places | None = None,
    options: WorkerOptions | None = None,
) -> Worker:
    """Runs the executions of some domains, holds them to their limits and reports how they end."""
    activities = [function for domain in domains for function in domain.activities]
    registry = Registry(*domains)
    items = ItemActivities(registry, sink)
    own = [domain for domain in domains if domain.workflow is not None]
    guarded = {domain.item_type: _guarded(domain) for domain in own if domain.guarded is not None}
    return _worker(
        client,
        task_queue,
        [*_unique([domain.workflow for domain in own]), ItemWorkflow],
        [*_unique(activities), items.execute, *OutcomeActivities(sink).all],
        concurrency,
        options,
        [DispatchInterceptor(limits, guarded, sink, ItemPlaces(registry, places or Places()))],
    )


def exec_workers(
    client: Client,
    domains: Sequence[Domain],
    sink: OutcomeSink,
    places: Places,
    *,
    limits: StartLimits | None = None,
    concurrency: Concurrency = EXEC,
    options: WorkerOptions | None = None,
) -> list[Worker]:
    """One `exec_worker` per task queue of the domains. Together they have the places."""
    queues: dict[str, list[Domain]] = {}
    for domain in domains:
        queues.setdefault(domain.config.exec_task_queue, []).append(domain)
    return [
        exec_worker(
            client, queue, queues[queue], sink, limits=limits, concurrency=concurrency, places=places, options=options
        )
        for queue in sorted(queues)
    ]


def init_worker(
    client: Client,
    task_queue: str,
    domains: Sequence[Domain],
    *,
    concurrency: Concurrency = INIT,
    options: WorkerOptions | None = None,
) -> Worker:
    """Runs what prepares items and enqueues them."""
    workflows = [workflow for domain in domains for workflow in domain.init_workflows]
    activities = [function for domain in domains for function in domain.init_activities]
    return _worker(client, task_queue, _unique(workflows), _unique(activities), concurrency, options)


def _guarded(domain: Domain) -> frozenset[str]:
    """The names of the domain's guarded activities; a name it does not have would leave the downstream unguarded."""
    names = {activity._Definition.must_from_callable(function).name for function in domain.activities}
    unknown = sorted(set(domain.guarded or ()) - names)
    if unknown:
        raise ConfigurationError("guarded", f"{unknown[0]!r} is no activity of {domain.item_type}")
    return frozenset(domain.guarded or ())


def _worker(
    client: Client,
    task_queue: str,
    workflows: Sequence[type],
    activities: Sequence[Callable[..., Any]],
    concurrency: Concurrency,
    options: WorkerOptions | None,
    interceptors: Sequence[Interceptor] = (),
) -> Worker:
    options = options or WorkerOptions()
    blocking = any(not inspect.iscoroutinefunction(function) for function in activities)
    return Worker(
        client,
        task_queue=task_queue,
        workflows=workflows,
        activities=activities,
        activity_executor=ThreadPoolExecutor(concurrency.activities) if blocking else None,
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, *options.passed_through)
        ),
        interceptors=[TraceInterceptor(), *interceptors] if tracing.is_on() else interceptors,
        max_concurrent_workflow_tasks=concurrency.workflow_tasks,
        max_concurrent_activities=concurrency.activities,
        max_concurrent_local_activities=concurrency.activities,
        max_heartbeat_throttle_interval=LONGEST_HEARTBEAT_PAUSE,
        graceful_shutdown_timeout=options.grace,
        deployment_config=options.deployment,
        identity=options.identity,
    )


def _unique(things: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(things))
