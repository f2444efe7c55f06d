"""Traces: one payment, one trace, from the request to the bank, on both engines; and nothing at all when off."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from paceline.dispatch.engines.temporal.client import connect
from paceline.dispatch.engines.temporal.schedule import schedule_id
from paceline.testing import eventually
from tests.acceptance.collector import Bank, Collector, bank, collector
from tests.acceptance.service import Service, command, environment

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"
SERVER, CLIENT, PRODUCER, CONSUMER = 2, 3, 4, 5
SECRETS = ("Alice Example", "Bob Example", "DE89370400440532013000", "FR1420041010050500013M02606", "12.34")
PROVIDER_KEY = "of-the-provider"


def payment(payment_id: str) -> dict[str, Any]:
    return {
        "paymentId": payment_id,
        "amount": "12.34",
        "currency": "EUR",
        "payer": {"name": "Alice Example", "iban": "DE89370400440532013000"},
        "payee": {"name": "Bob Example", "iban": "FR1420041010050500013M02606"},
        "executeAt": datetime.now(UTC).isoformat(),
    }


def traced(spans_sent: Collector, paid: Bank, **others: str) -> dict[str, str]:
    return {
        "PACELINE_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans_sent.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "PACELINE_SLOTS_DEFAULT_WINDOW": "PT0.1S",
        "PACELINE_PAYMENTS_DOWNSTREAM_URL": paid.url,
        **others,
    }


@contextmanager
def paceline_worker(directory: Path, variables: dict[str, str]) -> Iterator[None]:
    with (directory / "worker.log").open("w") as log:
        process = subprocess.Popen(
            command("worker", "all"), cwd=directory, env=environment(**variables), stdout=log, stderr=log
        )
        try:
            yield
            process.terminate()
            assert process.wait(60) == 0, (directory / "worker.log").read_text()
        finally:
            process.kill()
            process.wait()


async def test_a_payment_is_one_trace_in_the_service_that_executes_it(tmp_path: Path) -> None:
    with (
        collector() as spans_sent,
        bank() as paid,
        Service(tmp_path, **traced(spans_sent, paid, PACELINE_LOG_FORMAT="json")) as service,
    ):
        with service.client() as http:
            answer = http.post("/api/v1/payments", json=payment("pay-1"), headers={"traceparent": TRACEPARENT})
            assert answer.status_code == 202
            http.get("/health/live")
            http.get("/metrics")

        await eventually(lambda: "POST /payments" in spans_sent.of(TRACE), within=30)
        await eventually(lambda: "execute PAYMENT" in spans_sent.of(TRACE), within=30)
        with service.client(headers={"traceparent": f"00-{'1' * 32}-{CALLER}-00"}) as http:
            item = http.get("/admin/dispatch/PAYMENT/items/pay-1").json()
    lines = [json.loads(line) for line in service.log.splitlines()]
    lines_of_trace = {line["event"]: line for line in lines if line.get("trace_id") == TRACE}
    assert sorted(lines_of_trace) == ["payment pay-1: payer and payee are notified", "request"]
    assert lines_of_trace["request"]["request_id"] == answer.headers["X-Request-Id"]
    assert {line["item_id"] for line in lines_of_trace.values()} == {"pay-1"}
    (batch,) = [line for line in lines if line["event"].startswith("Batch ")]
    assert (batch["item_type"], batch["event"].endswith("of PAYMENT: 1 DISPATCHED")) == ("PAYMENT", True)
    spans = spans_sent.of(TRACE)
    assert parents(spans) == {
        "POST /api/v1/payments": None,
        "slots.assign": "POST /api/v1/payments",
        "queue.enqueue": "POST /api/v1/payments",
        "dispatch": "queue.enqueue",
        "execute PAYMENT": "dispatch",
        "POST /payments": "execute PAYMENT",
    }
    assert {span.trace_id for span in spans_sent.spans} == {TRACE}, "what machines poll is not traced"
    request = spans["POST /api/v1/payments"]
    assert (request.parent_id, request.kind, request.service) == (CALLER, SERVER, "paceline")
    assert request.attributes["http.route"] == "/api/v1/payments"
    assert request.attributes["http.response.status_code"] == 202
    assert request.attributes["paceline.request_id"] == answer.headers["X-Request-Id"]
    assert spans["slots.assign"].attributes == {
        "paceline.event_id": "payment:pay-1",
        "paceline.config": "default",
        "paceline.batch_size": 1,
        "paceline.outcome": "assigned",
    }
    enqueue = spans["queue.enqueue"]
    assert enqueue.kind == PRODUCER
    assert enqueue.attributes == {
        "paceline.item_type": "PAYMENT",
        "paceline.item_id": "pay-1",
        "paceline.outcome": "queued",
    }
    assert item["traceparent"] == f"00-{TRACE}-{enqueue.span_id}-01", "an operator finds the trace of an item"
    assert spans["dispatch"].kind == CONSUMER
    assert spans["dispatch"].attributes["paceline.outcome"] == "STARTED"
    assert spans["execute PAYMENT"].attributes["paceline.outcome"] == "completed"
    call = spans["POST /payments"]
    assert (call.kind, call.attributes["http.response.status_code"]) == (CLIENT, 201)
    assert [each["traceparent"] for each in paid.calls] == [f"00-{TRACE}-{call.span_id}-01"]
    holds_no_secrets(spans_sent)


async def test_a_payment_is_one_trace_across_temporal_and_two_processes(
    tmp_path: Path, postgres_url: str, temporal_address: str
) -> None:
    payment_id = f"pay-{uuid4().hex[:8]}"
    with collector() as spans_sent, bank() as paid:
        variables = traced(
            spans_sent,
            paid,
            OTEL_SERVICE_NAME="payments-worker",
            PACELINE_DATABASE_URL=postgres_url,
            PACELINE_TEMPORAL_ADDRESS=temporal_address,
            PACELINE_LOG_FORMAT="json",
        )
        service = Service(tmp_path, **variables | {"OTEL_SERVICE_NAME": "payments-service"})
        with service, paceline_worker(tmp_path, variables):
            with service.client() as http:
                answer = http.post("/api/v1/payments", json=payment(payment_id), headers={"traceparent": TRACEPARENT})
                assert answer.status_code == 202, answer.text
            await eventually(lambda: "workflow PaymentExecWorkflow" in spans_sent.of(TRACE), within=60)
    # It would fire every second from now on, in the server that other tests use.
    await (await connect(temporal_address)).get_schedule_handle(schedule_id("PAYMENT")).delete()
    spans = spans_sent.of(TRACE)
    assert parents(spans) == {
        "POST /api/v1/payments": None,
        "workflow PaymentInitWorkflow": "POST /api/v1/payments",
        "activity initiate_payments": "workflow PaymentInitWorkflow",
        "slots.assign": "activity initiate_payments",
        "queue.enqueue": "activity initiate_payments",
        "dispatch": "queue.enqueue",
        "workflow PaymentExecWorkflow": "dispatch",
        "activity execute_payment": "workflow PaymentExecWorkflow",
        "POST /payments": "activity execute_payment",
        "activity send_notifications": "workflow PaymentExecWorkflow",
    }
    assert len([span for span in spans_sent.spans if span.trace_id == TRACE]) == len(spans), "each once"
    assert {span.trace_id for span in spans_sent.spans} == {TRACE}, "the dispatcher's own cycles are not traced"
    services = {name: span.service for name, span in spans.items()}
    assert services["POST /api/v1/payments"] == "payments-service"
    assert services["POST /payments"] == services["dispatch"] == "payments-worker"
    execution = spans["workflow PaymentExecWorkflow"]
    assert execution.attributes["paceline.workflow_id"] == f"exec-PAYMENT-{payment_id}"
    assert execution.attributes["paceline.outcome"] == "completed"
    assert execution.seconds >= spans["activity execute_payment"].seconds, "a workflow lasts as long as its activities"
    assert [call["traceparent"] for call in paid.calls] == [f"00-{TRACE}-{spans['POST /payments'].span_id}-01"]
    holds_no_secrets(spans_sent)
    for log in (service.log, (tmp_path / "worker.log").read_text()):
        assert TRACE in log
        assert "Traceback" not in log


async def test_a_message_is_one_trace_from_the_caller_to_the_provider(tmp_path: Path) -> None:
    with collector() as spans_sent, bank() as provider:
        variables = traced(spans_sent, provider, PACELINE_SMS_WEBHOOK_URL=f"{provider.url}/sms?key={PROVIDER_KEY}")
        with Service(tmp_path, **variables) as service:
            with service.client(headers={"traceparent": TRACEPARENT}) as http:
                quota = {"userId": 7, "rateLimit": 1, "timeWindow": 1}
                assert http.post("/api/config", json=quota, headers={"traceparent": "none"}).status_code == 200
                sent = http.post("/api/send", json={"userId": 7, "message": "Bob Example paid 12.34"})
                assert sent.status_code == 200
            await eventually(lambda: "execute SMS" in spans_sent.of(TRACE), within=30)
    spans = spans_sent.of(TRACE)
    assert parents(spans) == {
        "POST /api/send": None,
        "sms.send": "POST /api/send",
        "dispatch": "sms.send",
        "execute SMS": "dispatch",
        "POST webhook": "execute SMS",
    }
    assert spans["sms.send"].attributes == {"paceline.message_id": sent.json()["messageId"], "paceline.outcome": "SENT"}
    assert spans["execute SMS"].attributes["paceline.outcome"] == "completed"
    assert [call["traceparent"] for call in provider.calls] == [f"00-{TRACE}-{spans['POST webhook'].span_id}-01"]
    holds_no_secrets(spans_sent)


async def test_requests_without_a_trace_begin_one_and_unsampled_ones_are_left_alone(tmp_path: Path) -> None:
    slot = {"eventId": "e-1", "requestedTime": "2030-03-01T16:00:00Z"}
    with collector() as spans_sent, bank() as paid, Service(tmp_path, **traced(spans_sent, paid)) as service:
        with service.client() as http:
            for header in (UNSAMPLED, "nonsense", f"00-{'0' * 32}-{CALLER}-01"):
                assert http.post("/api/v1/slots", json=slot, headers={"traceparent": header}).status_code == 200
            assert http.post("/api/v1/slots", json={"eventId": "e-2"}).status_code == 400
        await eventually(lambda: len(spans_sent.spans) == 5, within=30)
    assert spans_sent.of(TRACE) == {}
    assigned = [span for span in spans_sent.spans if span.name == "slots.assign"]
    requests = {span.span_id: span for span in spans_sent.spans if span.name == "POST /api/v1/slots"}
    assert [span.attributes["paceline.outcome"] for span in assigned] == ["existing", "existing"]
    assert all(span.parent_id in requests and span.trace_id == requests[span.parent_id].trace_id for span in assigned)
    assert [span.parent_id for span in requests.values()] == ["", "", ""]
    assert [span.status for span in requests.values()] == ["", "", ""], "a caller's mistake is not the service's"


async def test_a_collector_that_is_away_costs_spans_and_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as silent, bank() as paid:
        # It takes connections and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        away = Collector()
        away.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        variables = traced(away, paid, OTEL_BSP_MAX_QUEUE_SIZE="8", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8")
        with Service(tmp_path, **variables) as service:
            with service.client() as http:
                for number in range(50):
                    slot = {"eventId": f"e-{number}", "requestedTime": "2030-03-01T16:00:00Z"}
                    assert http.post("/api/v1/slots", json=slot).status_code == 200
                assert http.post("/api/v1/payments", json=payment("pay-1")).status_code == 202
            await eventually(lambda: len(paid.calls) == 1, within=30)
            assert service.stop() == 0


def test_with_traces_off_nothing_of_opentelemetry_is_imported(tmp_path: Path) -> None:
    # Frameworks may import its API, which does nothing, for themselves: what records and sends is its SDK.
    program = """
import asyncio, sys

def imported(*names):
    return [name for name in sys.modules if name.startswith(names)]

import paceline, paceline.server.wiring, paceline.server.cli, paceline_payments.workflows
import paceline.dispatch.worker.engine, paceline.dispatch.engines.temporal.workers
print(imported("opentelemetry"))
from paceline.server.http.app import create_app
from paceline.server.settings import Settings

async def main():
    app = create_app(Settings.load())
    async with app.router.lifespan_context(app):
        await app.state.services.slots.assign("e", "default", "2030-03-01T16:00:00Z")

asyncio.run(main())
sending = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
print(imported(*sending))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]"]


def parents(spans: dict[str, Any]) -> dict[str, str | None]:
    """The parent of each span, by name; None if it came from outside."""
    names = {span.span_id: name for name, span in spans.items()}
    return {name: names.get(span.parent_id) for name, span in spans.items()}


def holds_no_secrets(spans_sent: Collector) -> None:
    everything = "\n".join(span.raw for span in spans_sent.spans)
    assert not [secret for secret in (*SECRETS, PROVIDER_KEY) if secret in everything]
