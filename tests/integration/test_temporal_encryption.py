"""Payloads on a real Temporal: encrypted there, readable to workers with the key, and mixed with plain ones."""

from __future__ import annotations

import base64
import uuid
from pathlib import Path
from typing import Any

import pytest

from paceline import Tasks
from paceline.dispatch.encryption import Encryption, KeyMissing
from paceline.dispatch.engines.temporal.client import TemporalConnection, connect, connect_for_dispatch
from paceline.dispatch.engines.temporal.converter import LARGE, data_converter
from paceline.dispatch.engines.temporal.engine import TemporalEngine
from paceline.dispatch.engines.temporal.workers import exec_worker
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.registry import Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.testing import eventually
from tests.models.queue_store import MemoryQueueStore

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
SECRET = "DE89370400440532013000"


async def test_temporal_sees_nothing_of_a_context_and_the_item_runs(temporal_address: str) -> None:
    encryption = Encryption([NEW, OLD])
    client = await connect_for_dispatch(temporal_address, encryption=encryption)
    given: list[Any] = []

    async def execute(_item_id: str, context: Any) -> None:
        given.append(context)

    name = f"E{uuid.uuid4().hex[:12]}"
    domain = Registry().register(name, execute, jitter_window_ms=0, exec_task_queue=f"queue-{name}")
    store = MemoryQueueStore()
    await store.configure(domain.config)
    outcomes = OutcomeReporter(store)
    async with exec_worker(client, domain.config.exec_task_queue, [domain], outcomes):
        await store.enqueue([EnqueueRequest.of(name, "one", {"iban": SECRET})])
        await DispatchCycle(store, TemporalEngine(client, outcomes)).run(name)

        async def completed() -> bool:
            row = await store.find(name, "one")
            return row is not None and row[0].status is Status.COMPLETED

        await eventually(completed)
    assert given == [{"iban": SECRET}]
    stranger = await connect(temporal_address)
    history = await stranger.get_workflow_handle(f"exec-{name}-one").fetch_history()
    events = history.to_json()
    assert SECRET not in events
    assert base64.b64encode(SECRET.encode()).decode()[:24] not in events
    assert base64.b64encode(b"binary/encrypted").decode() in events


async def test_temporal_sees_nothing_of_a_tasks_arguments_and_result(temporal_address: str, tmp_path: Path) -> None:
    async with Tasks(f"sqlite:///{tmp_path / 'work.db'}", encryption_keys=[NEW, OLD]) as tasks:
        name = f"E{uuid.uuid4().hex[:12]}"

        @tasks.task(name=name)
        async def double(text: str) -> str:
            return 2 * text

        await double.options(key="one").enqueue(SECRET)
        async with tasks.running(temporal=TemporalConnection(temporal_address)):

            async def result() -> str | None:
                shown: str | None = (await double.show("one")).result
                return shown

            assert await eventually(result) == 2 * SECRET
    stranger = await connect(temporal_address)
    history = await stranger.get_workflow_handle(f"exec-{name.upper()}-one").fetch_history()
    events = history.to_json()
    assert SECRET not in events
    assert base64.b64encode(SECRET.encode()).decode()[:24] not in events
    assert base64.b64encode(b"binary/encrypted").decode() in events


@pytest.mark.parametrize("value", ["x", "y" * (2 * LARGE)], ids=["small", "large"])
async def test_payloads_of_other_keys_and_plain_ones_are_read(value: str) -> None:
    plain, old = data_converter(), data_converter(Encryption([OLD]))
    both, stranger = data_converter(Encryption([NEW, OLD])), data_converter(Encryption([NEW]))
    for converter in (plain, old, both):
        payloads = await converter.encode([value])
        assert await both.decode(payloads, [str]) == [value]
    with pytest.raises(KeyMissing):
        await stranger.decode(await old.encode([value]), [str])
