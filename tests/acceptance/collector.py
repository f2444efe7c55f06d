"""Stand-ins for the outside: a collector that keeps the spans it is sent, and a bank that keeps the calls it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received(NamedTuple):
    """A span, as the collector saw it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: Mapping[str, Any]
    service: str
    seconds: float
    status: str
    raw: str


class Collector:
    """An OTLP collector over HTTP, on the loopback."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.refused = 0
        self.url = ""

    def of(self, trace_id: str) -> dict[str, Received]:
        """A trace's spans by name."""
        return {span.name: span for span in self.spans if span.trace_id == trace_id}

    def take(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(of_resource.resource.attributes).get("service.name", "")
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Received(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.kind,
                            _values(span.attributes),
                            service,
                            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            span.status.message,
                            str(span),
                        )
                    )


class Bank:
    """Accepts every payment and every message, and records their headers."""

    def __init__(self) -> None:
        self.calls: list[dict[str, str]] = []
        self.url = ""


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector()

    class Handler(_Quiet):
        def do_POST(self) -> None:
            body = self.body()
            if self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf":
                kept.take(body)
                self.answer(200, b"")
            else:
                kept.refused += 1
                self.answer(404, b"")

    with _serving(Handler) as kept.url:
        yield kept


@contextmanager
def bank() -> Iterator[Bank]:
    kept = Bank()

    class Handler(_Quiet):
        def do_POST(self) -> None:
            asked = json.loads(self.body())
            kept.calls.append({name.lower(): value for name, value in self.headers.items()})
            self.answer(201, json.dumps({"status": "EXECUTED", "reference": f"ref-{asked.get('paymentId')}"}).encode())

    with _serving(Handler) as kept.url:
        yield kept


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in attributes}
