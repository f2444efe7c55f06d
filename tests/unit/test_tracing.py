"""Traces: whose sampling decision applies, and which spans join the application's own trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from paceline import tracing
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain, Registry
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.errors import ConfigurationError, NotFound, SlotsExhausted, StoreUnavailable
from paceline.server.settings import Settings
from paceline.server.wiring import telemetry
from paceline.server.wiring.telemetry import collect_traces, traces_sent
from paceline.slots.booking.packing import Booking
from paceline.slots.model import BookingGroup, WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.testing import eventually
from paceline.tracing import accepted, derived
from tests.collected_spans import Collected, collecting
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
AT = "2030-03-01T16:00:00Z"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collected]:
    with collecting(monkeypatch) as collected:
        yield collected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f"{PARENT}-more",
        f"{PARENT}\n",
        f" {PARENT}",
        f"ff{PARENT[2:]}",
        f"01{PARENT[2:]}x",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[:-1]}é-{SPAN}-01",
    ],
)
def test_what_is_no_traceparent_is_not_believed(header: str) -> None:
    assert accepted(header) is None


def test_a_later_version_is_read_as_far_as_it_is_understood() -> None:
    assert accepted(PARENT) == PARENT
    assert accepted(f"01{PARENT[2:]}-more") == PARENT


def test_a_derived_traceparent_is_the_same_everywhere_and_another_for_another_run() -> None:
    one = derived(PARENT, "run-1")
    assert one == derived(PARENT, "run-1")
    assert accepted(one) == one
    assert one[:36] == PARENT[:36]
    assert one[-3:] == PARENT[-3:]
    assert len({one, PARENT, derived(PARENT, "run-2"), derived(one, "run-1")}) == 4


def test_spans_know_their_parents_ids_and_failures(collected: Collected) -> None:
    assert tracing.origin() is None
    outer = tracing.begin("outer", {"n": 1}, parent=PARENT)
    with tracing.inside(outer):
        origin = tracing.origin()
        assert origin is not None
        assert origin.traceparent == outer.traceparent
        own = derived(outer.traceparent, "run")
        tracing.begin("inner", parent=origin.traceparent, at_ns=origin.at_ns - 5, own=own).end(failed="Conflict")
        tracing.begin("root", parent=None).end()
    outer.end({"more": True}, name="renamed")
    outer.end({"late": True}, failed="too late")
    inner, root, renamed = collected.spans()
    assert (renamed.name, dict(renamed.attributes or {})) == ("renamed", {"n": 1, "more": True})
    assert renamed.parent is not None
    assert f"{renamed.parent.span_id:016x}" == SPAN
    assert f"{inner.context.span_id:016x}" == own.split("-")[2]
    assert inner.start_time == origin.at_ns - 5
    assert (inner.status.description, dict(inner.attributes or {})) == ("Conflict", {"error.type": "Conflict"})
    assert root.parent is None
    assert f"{root.context.trace_id:032x}" != TRACE


@pytest.mark.parametrize("spoilt", ["", "nonsense", PARENT[:-1], "00-xyz-1-01"])
def test_a_spoilt_parent_is_no_parent(spoilt: str, collected: Collected) -> None:
    tracing.begin("whole", parent=spoilt).end()
    (only,) = collected.spans()
    assert only.parent is None


def test_an_exception_leaves_no_text_in_the_span(collected: Collected) -> None:
    span = tracing.begin("call", parent=PARENT)
    with pytest.raises(ValueError, match="secret"), tracing.inside(span):
        raise ValueError("secret")
    span.end(failed="ValueError")
    (only,) = collected.spans()
    assert "secret" not in only.to_json()
    assert only.events == ()


def test_an_unsampled_trace_stays_so_and_is_passed_on(collected: Collected) -> None:
    span = tracing.begin("quiet", parent=PARENT[:-1] + "0")
    with tracing.inside(span):
        origin = tracing.origin()
    span.end()
    assert origin is not None
    assert origin.traceparent == span.traceparent
    assert span.traceparent.startswith(f"00-{TRACE}-")
    assert span.traceparent.endswith("-00")
    assert collected.spans() == []


async def test_the_end_does_not_wait_for_a_collector_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    class Stuck(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            never.wait(60)
            return SpanExportResult.FAILURE

    monkeypatch.setattr(telemetry, "CLOSING_SECONDS", 0.05)
    with collecting(monkeypatch, Stuck()) as collected:
        monkeypatch.setattr(telemetry, "_flush", [collected.provider.force_flush])
        async with traces_sent():
            tracing.begin("lost", parent=None).end()
        assert not never.is_set(), "it gave up while the collector was still silent"
        never.set()


def test_without_an_sdk_the_applications_trace_goes_on_through_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tracing.is_on()
    assert tracing.origin() is None
    outer = tracing.begin("outer", parent=PARENT)
    with tracing.inside(outer):
        origin = tracing.origin()
        assert origin is not None
        assert origin.traceparent == PARENT
    outer.end({"n": 1}, failed="nothing is kept")
    monkeypatch.setattr(tracing, "API", "opentelemetry.never_loaded")
    with tracing.inside(outer):
        assert tracing.origin() is None, "nobody has loaded the API"


def test_a_memory_decision_loads_nothing_of_opentelemetry() -> None:
    script = """
import sys
from paceline import DispatchQueue, Limiter, Plan, SlotScheduler, TokenBucket
limiter = Limiter(plans=[Plan("gold", TokenBucket(1, 1))])
assert limiter.acquire("user:1", "gold").allowed
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


class Stores(MemorySlotStore):
    """Holds its first transaction until it is let go, so that callers gather behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.fails = False

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> list[list[Booking]]:
        self.entered.set()
        await self.let_go.wait()
        if self.fails:
            raise StoreUnavailable("away, says the driver at 10.0.0.1")
        return await super().book_groups(groups, now_ms=now_ms, template_configs=template_configs)


async def test_each_of_many_gathered_callers_has_a_span_in_its_own_trace(collected: Collected) -> None:
    store = Stores()
    async with SlotScheduler(store) as slots:
        await slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))

        async def ask(number: int) -> None:
            with tracing.inside(tracing.begin("caller", parent=f"00-{number + 1:032x}-{SPAN}-01")):
                await slots.assign(f"e{number}", "default", AT)

        first = asyncio.create_task(ask(0))
        await store.entered.wait()
        others = [asyncio.create_task(ask(number)) for number in range(1, 5)]
        untraced = asyncio.create_task(slots.assign("untraced", "default", AT))
        await asyncio.sleep(0)  # all of them have asked by now
        store.let_go.set()
        await asyncio.gather(first, *others, untraced)
    spans = {str((span.attributes or {})["paceline.event_id"]): span for span in collected.spans()}
    assert sorted(spans) == [f"e{number}" for number in range(5)]
    assert [spans[f"e{number}"].context.trace_id for number in range(5)] == [1, 2, 3, 4, 5]
    sizes = [(spans[f"e{number}"].attributes or {})["paceline.batch_size"] for number in range(5)]
    assert sizes == [1, 5, 5, 5, 5], "the first went alone, the others shared a transaction"


async def test_refusals_and_failures_are_named_and_not_quoted(collected: Collected) -> None:
    store = Stores()
    store.let_go.set()
    async with SlotScheduler(store) as slots:
        await slots.configure("tight", WindowPolicy(max_per_window=1, window="PT4S", max_delay="PT1S"))
        with tracing.inside(tracing.begin("caller", parent=PARENT)):
            await slots.assign("first", "tight", AT)
            with pytest.raises(SlotsExhausted):
                await slots.assign("second", "tight", AT)
            with pytest.raises(NotFound):
                await slots.assign("third", "absent", AT)
            store.fails = True
            with pytest.raises(StoreUnavailable):
                await slots.assign("fourth", "tight", AT)
    spans = collected.spans()
    outcomes = [((span.attributes or {})["paceline.outcome"], span.status.description) for span in spans]
    assert outcomes == [
        ("assigned", None),
        ("refused", "SlotsExhausted"),
        ("refused", "NotFound"),
        ("refused", "StoreUnavailable"),
    ]
    assert "10.0.0.1" not in "".join(span.to_json() for span in spans)


async def test_an_item_queued_in_a_trace_carries_it_and_many_at_once_do_not(collected: Collected) -> None:
    async with DispatchQueue(MemoryQueueStore()) as queue:
        await queue.define(DispatchConfig(item_type="WORK"))
        await queue.enqueue("WORK", "before")
        with tracing.inside(tracing.begin("caller", parent=PARENT)):
            await queue.enqueue("WORK", "alone")
            await queue.enqueue("WORK", "alone")
            await queue.enqueue_many("WORK", [("one", {}, None), ("two", {}, None)])
        traces = {item.item_id: item.traceparent for item in await queue.list("WORK")}
    first, second = collected.spans()
    assert traces == {
        "alone": f"00-{TRACE}-{first.context.span_id:016x}-01",
        "before": None,
        "one": None,
        "two": None,
    }
    assert [(span.attributes or {})["paceline.outcome"] for span in (first, second)] == ["queued", "existing"]


async def test_an_execution_is_part_of_its_items_trace_or_a_trace_of_its_own(
    collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    inside: dict[str, str] = {}

    async def execute(item_id: str, context: object) -> None:
        origin = tracing.origin()
        assert origin is not None
        inside[item_id] = origin.traceparent
        if item_id == "traced":
            raise ValueError("IBAN DE89370400440532013000 is unknown")

    config = DispatchConfig(item_type="WORK", jitter_window_ms=0, max_dispatch_retries=0)
    async with DispatchQueue(MemoryQueueStore()) as queue:
        await queue.define(config)
        with tracing.inside(tracing.begin("caller", parent=PARENT)):
            await queue.enqueue("WORK", "traced")
            await queue.enqueue_many("WORK", [("alone", {}, None)])
        engine = LocalEngine(Registry(Domain(config, execute)), OutcomeReporter(queue.store))
        await DispatchCycle(queue.store, engine).run("WORK")

        async def settled() -> bool:
            depth = (await queue.stats("WORK")).depth
            return depth.get(Status.COMPLETED) == depth.get(Status.DEAD_LETTER) == 1

        await eventually(settled)
        await engine.close()
    spans = {(span.name, str((span.attributes or {})["paceline.item_id"])): span for span in collected.spans()}
    for item_id in ("traced", "alone"):
        started, ran = spans["dispatch", item_id], spans["execute WORK", item_id]
        assert ran.parent is not None
        assert ran.parent.span_id == started.context.span_id
        assert inside[item_id] == f"00-{ran.context.trace_id:032x}-{ran.context.span_id:016x}-01"
        assert (started.attributes or {})["paceline.batch_size"] == 2
    traced, alone = spans["dispatch", "traced"], spans["dispatch", "alone"]
    assert traced.parent is not None
    assert traced.parent.span_id == spans["queue.enqueue", "traced"].context.span_id
    assert f"{traced.context.trace_id:032x}" == TRACE
    assert alone.parent is None
    assert alone.context.trace_id != traced.context.trace_id
    outcomes = {name: (span.attributes or {}).get("paceline.outcome") for (_, name), span in spans.items()}
    assert outcomes == {"traced": "failed", "alone": "completed"}
    assert "DE89370400440532013000" not in "".join(span.to_json() for span in spans.values())
    records = [record for record in caplog.records if record.name == "paceline.dispatch"]
    raised, dead = (record.getMessage() for record in records)
    assert raised.startswith("WORK traced raised\nTraceback (most recent call last):\n")
    assert dead == "WORK traced is a dead letter, retryCount=1"
    assert {(record.item_type, record.item_id) for record in records} == {("WORK", "traced")}  # type: ignore[attr-defined]


def test_the_switch_says_what_it_needs_and_opentelemetrys_own_one_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    collect_traces(Settings.load())
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    collect_traces(Settings.load(traces="console"))
    assert not tracing.is_on()
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigurationError, match="PACELINE_TRACES: an OTEL_… variable does not fit: max_queue_size"):
        collect_traces(Settings.load(traces="console"))
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigurationError, match=r"traces needs: pip install 'paceline\[traces\]'"):
        collect_traces(Settings.load(traces="console"))
    assert not tracing.is_on()


def test_an_sdk_that_the_application_has_set_up_stays(collected: Collected) -> None:
    collect_traces(Settings.load(traces="console"))
    assert trace.get_tracer_provider() is collected.provider
