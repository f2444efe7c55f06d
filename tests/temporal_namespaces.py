"""Namespaces in the shared Temporal: what an installation does in its own, no other one sees."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

RETENTION_SECONDS = 24 * 3600


class TemporalNamespace(NamedTuple):
    address: str
    namespace: str


def create(address: str) -> TemporalNamespace:
    created = TemporalNamespace(address, f"test-{uuid.uuid4().hex[:16]}")
    with ThreadPoolExecutor(1) as thread:  # the event loop of a test may run in this one
        thread.submit(asyncio.run, _register(created)).result()
    return created


async def _register(created: TemporalNamespace) -> None:
    from google.protobuf.duration_pb2 import Duration
    from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

    from headgate.dispatch.engines.temporal.client import connect

    retention = Duration(seconds=RETENTION_SECONDS)
    request = RegisterNamespaceRequest(namespace=created.namespace, workflow_execution_retention_period=retention)
    await (await connect(created.address)).workflow_service.register_namespace(request)
