"""Read-only facts about a Temporal server."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from paceline.errors import NotFound, StoreUnavailable


class TemporalInfo(NamedTuple):
    """Its version, and how many workers poll each of the given task queues."""

    version: str
    pollers: dict[str, int]


async def temporal_info(client: Client, task_queues: Collection[str], *, timeout: float) -> TemporalInfo:
    """Queries the server; `NotFound` if it lacks the client's namespace, `StoreUnavailable` if it does not answer."""
    deadline = timedelta(seconds=timeout)
    service, namespace = client.workflow_service, client.namespace
    with _translated(namespace):
        system = await service.get_system_info(GetSystemInfoRequest(), timeout=deadline)
        await service.describe_namespace(DescribeNamespaceRequest(namespace=namespace), timeout=deadline)
        pollers = {}
        for name in task_queues:
            query = DescribeTaskQueueRequest(
                namespace=namespace,
                task_queue=TaskQueue(name=name),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            )
            pollers[name] = len((await service.describe_task_queue(query, timeout=deadline)).pollers)
    return TemporalInfo(system.server_version, pollers)


async def ping_temporal(client: Client, *, timeout: float) -> None:
    """`NotFound` if the server lacks the client's namespace, `StoreUnavailable` if it does not answer."""
    namespace = client.namespace
    with _translated(namespace):
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=namespace), timeout=timedelta(seconds=timeout)
        )


@contextmanager
def _translated(namespace: str) -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotFound("namespace", namespace) from error
        raise StoreUnavailable(f"Temporal answered {error.status.name}: {error.message}") from error
    except RuntimeError as error:
        raise StoreUnavailable(f"no Temporal answers: {error}") from error
