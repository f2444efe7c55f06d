"""Traces across Temporal while workflows are replayed at every step, cancelled, failing, and continued."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from paceline.dispatch.engines.temporal.client import connect
from paceline.dispatch.engines.temporal.trace_interceptor import MEMO, TraceInterceptor
from paceline.dispatch.engines.temporal.workers import PASSED_THROUGH
from paceline.testing import eventually
from paceline.tracing import derived
from tests.collected_spans import Collected, collecting

with workflow.unsafe.imports_passed_through():
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
SECOND = timedelta(seconds=30)
ONCE = RetryPolicy(maximum_attempts=1)


@activity.defn
async def work(what: str) -> str:
    if what == "fail":
        raise ApplicationError("IBAN DE89370400440532013000 is unknown")
    return what


@workflow.defn(sandboxed=False)
class Steps:
    """Takes steps: an activity each, or something else that ends it."""

    @workflow.run
    async def run(self, steps: list[str]) -> None:
        for at, step in enumerate(steps):
            if step == "wait":
                await workflow.wait_condition(lambda: False)
            elif step == "again":
                workflow.continue_as_new(steps[at + 1 :])
            else:
                await workflow.execute_activity(work, step, start_to_close_timeout=SECOND, retry_policy=ONCE)
                await workflow.sleep(timedelta(milliseconds=1))


class Rig:
    def __init__(self, client: Client, queue: str, collected: Collected) -> None:
        self.client, self.queue, self.collected = client, queue, collected

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
        async with Worker(
            self.client,
            task_queue=self.queue,
            workflows=[Steps],
            activities=[work],
            interceptors=[TraceInterceptor()],
            workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
            max_cached_workflows=0,  # every step evicts the workflow, and the next one replays it
        ):
            yield

    async def run(self, *steps: str, traced: bool = True) -> str:
        """Runs a workflow to its end, and returns the id of its first run."""
        handle = await self.client.start_workflow(
            Steps.run,
            list(steps),
            id=f"steps-{uuid.uuid4()}",
            task_queue=self.queue,
            memo={MEMO: PARENT} if traced else None,
        )
        await handle.result()
        return str(handle.first_execution_run_id)

    def spans(self) -> list[ReadableSpan]:
        return self.collected.spans()


@pytest.fixture
async def rig(temporal_address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    with collecting(monkeypatch) as collected:
        yield Rig(await connect(temporal_address), f"traces-{uuid.uuid4()}", collected)


def shown(span: ReadableSpan) -> tuple[str, object, str | None]:
    return span.name, (span.attributes or {}).get("paceline.outcome"), span.status.description


async def test_a_replayed_workflow_is_one_span_with_its_activities_below(rig: Rig) -> None:
    async with rig.working():
        run_id = await rig.run("a", "b")
    first, second, whole = rig.spans()
    assert [shown(span) for span in (first, second, whole)] == [
        ("activity work", "completed", None),
        ("activity work", "completed", None),
        ("workflow Steps", "completed", None),
    ]
    own = derived(PARENT, run_id)
    assert f"{whole.context.span_id:016x}" == own.split("-")[2]
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == SPAN
    assert all(span.parent is not None and span.parent.span_id == whole.context.span_id for span in (first, second))
    assert {f"{span.context.trace_id:032x}" for span in (first, second, whole)} == {TRACE}
    assert (whole.start_time or 0) <= (first.start_time or 0) <= (second.end_time or 0) <= (whole.end_time or 0)


async def test_failures_are_named_and_not_quoted(rig: Rig) -> None:
    async with rig.working():
        with pytest.raises(WorkflowFailureError):
            await rig.run("fail")
    spans = rig.spans()
    assert [shown(span) for span in spans] == [
        ("activity work", "failed", "ApplicationError"),
        ("workflow Steps", "failed", "ActivityError"),
    ]
    assert "DE89370400440532013000" not in "".join(span.to_json() for span in spans)


async def test_a_worker_that_stops_ends_no_workflow(rig: Rig) -> None:
    async with rig.working():
        handle = await rig.client.start_workflow(
            Steps.run, ["a", "wait"], id=f"steps-{uuid.uuid4()}", task_queue=rig.queue, memo={MEMO: PARENT}
        )
        await asyncio.wait_for(_until_waiting(rig), 30)
    async with rig.working():
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert [shown(span) for span in rig.spans()] == [
        ("activity work", "completed", None),
        ("workflow Steps", "failed", "CancelledError"),
    ]


async def _until_waiting(rig: Rig) -> None:
    await eventually(lambda: bool(rig.spans()))


async def test_a_workflow_that_continues_as_new_stays_in_the_trace(rig: Rig) -> None:
    async with rig.working():
        await rig.run("a", "again", "b")
    names = [shown(span)[:2] for span in rig.spans()]
    assert names == [
        ("activity work", "completed"),
        ("workflow Steps", "continued"),
        ("activity work", "completed"),
        ("workflow Steps", "completed"),
    ]


async def test_a_workflow_nobody_traced_is_left_alone(rig: Rig) -> None:
    async with rig.working():
        await rig.run("a", traced=False)
    assert rig.spans() == []


async def test_an_sdk_that_makes_up_all_ids_has_activities_beside_their_workflow(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with collecting(monkeypatch, exporter, provider) as collected:
        rig = Rig(await connect(temporal_address), f"traces-{uuid.uuid4()}", collected)
        async with rig.working():
            await rig.run("a")
        spans = rig.spans()
    assert [span.name for span in spans] == ["activity work", "workflow Steps"]
    assert [f"{span.parent.span_id:016x}" for span in spans if span.parent is not None] == [SPAN, SPAN], (
        "every parent is a span that somebody has recorded"
    )
