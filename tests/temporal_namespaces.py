"""Namespaces in the shared Temporal: what an installation does in its own, no other one sees."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

RETENTION_SECONDS = 24 * 3600


class TemporalNamespace(NamedTuple):
    address: str
    namespace: str


@contextmanager
def lent(address: str) -> Iterator[TemporalNamespace]:
    """A new namespace. Its Schedules are deleted afterwards: they would fire every second until the server ends."""
    namespace = TemporalNamespace(address, f"test-{uuid.uuid4().hex[:16]}")
    _run(_register(namespace))
    try:
        yield namespace
    finally:
        _run(_delete_schedules(namespace))


def _run(work: Coroutine[Any, Any, None]) -> None:
    with ThreadPoolExecutor(1) as thread:  # the event loop of a test may run in this one
        thread.submit(asyncio.run, work).result()


async def _register(created: TemporalNamespace) -> None:
    from google.protobuf.duration_pb2 import Duration
    from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

    from paceline.dispatch.engines.temporal.client import connect

    retention = Duration(seconds=RETENTION_SECONDS)
    request = RegisterNamespaceRequest(namespace=created.namespace, workflow_execution_retention_period=retention)
    await (await connect(created.address)).workflow_service.register_namespace(request)


async def _delete_schedules(namespace: TemporalNamespace) -> None:
    from paceline.dispatch.engines.temporal.client import connect

    client = await connect(*namespace)
    async for schedule in await client.list_schedules():
        await client.get_schedule_handle(schedule.id).delete()
