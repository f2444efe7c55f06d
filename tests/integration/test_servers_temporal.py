"""The packaged Temporal: one per run for everyone, and private ones that can be broken."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError
from temporalio.worker import Worker

from paceline.testing import TemporalServer, eventually


@workflow.defn(sandboxed=False)
class Echo:
    @workflow.run
    async def run(self, word: str) -> str:
        return word


async def test_the_shared_server_runs_workflows(temporal_address: str) -> None:
    client = await Client.connect(temporal_address)
    queue = f"echo-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[Echo]):
        assert await client.execute_workflow(Echo.run, "hello", id=queue, task_queue=queue) == "hello"
    await eventually(lambda: is_listed(client, queue))  # the list lags behind


async def is_listed(client: Client, workflow_id: str) -> bool:
    executions = [execution async for execution in client.list_workflows(f"WorkflowId = '{workflow_id}'")]
    return [execution.status for execution in executions] == [WorkflowExecutionStatus.COMPLETED]


async def test_a_workflow_survives_kill_and_restart(own_temporal: TemporalServer) -> None:
    address = own_temporal.address
    client = await Client.connect(address)
    await client.start_workflow(Echo.run, "again", id="kept", task_queue="echo")
    await asyncio.to_thread(own_temporal.kill)
    await asyncio.to_thread(own_temporal.start)
    await asyncio.to_thread(own_temporal.restart)
    assert own_temporal.address == address
    async with Worker(client, task_queue="echo", workflows=[Echo]):
        assert await client.get_workflow_handle("kept").result() == "again"


async def test_namespaces_search_attributes_and_settings_reach_the_server() -> None:
    server = TemporalServer(
        durable=False,
        namespaces=["billing"],
        search_attributes={"ItemType": "Keyword"},
        dynamic_config={"limit.maxIDLength": 40},
    )
    item_type = SearchAttributeKey.for_keyword("ItemType")
    with server:
        client = await Client.connect(server.address, namespace="billing")
        attributes = TypedSearchAttributes([SearchAttributePair(item_type, "INVOICE")])
        handle = await client.start_workflow(Echo.run, "x", id="x", task_queue="x", search_attributes=attributes)
        assert (await handle.describe()).typed_search_attributes[item_type] == "INVOICE"
        with pytest.raises(RPCError, match="exceeds maximum allowed length"):
            await client.start_workflow(Echo.run, "y", id="y" * 41, task_queue="x")
