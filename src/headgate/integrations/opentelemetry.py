"""Spans of slots and queues through OpenTelemetry, in a program of your own: `pip install 'headgate[traces]'`.

    tracer = OpenTelemetryTracer(OTLPSpanExporter())
    async with DispatchQueue.open("sqlite:///headgate.db", tracer=tracer) as queue: ...

The `Tracer` port on OpenTelemetry's SDK, which batches spans and sends them from a thread of its own.

A collector that is slow or away costs spans, not requests: the queue is bounded, and what does not fit is dropped. All
else is OpenTelemetry's own to configure: `OTEL_EXPORTER_OTLP_*`, `OTEL_BSP_*`, `OTEL_TRACES_SAMPLER`,
`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headgate.extras import needed
from headgate.tracing import Attributes, Kind, Origin, Span, accepted

with needed("traces", "traces"):
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

__all__ = ["OpenTelemetryTracer"]

SERVICE = "headgate"
CLOSING_SECONDS = 5.0
"""How long the end of a process may wait for the collector."""
_KINDS = {kind: SpanKind[kind.name] for kind in Kind}
_own: ContextVar[int] = ContextVar("headgate_span_id", default=0)


class _Ids(RandomIdGenerator):
    """Random ids, but for spans whose id was given away before they began."""

    def generate_span_id(self) -> int:
        return _own.get() or super().generate_span_id()


class OpenTelemetryTracer:
    """A `Tracer` that hands its spans to an exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        # `Resource.create` lets the environment's service name win only over its own default.
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._provider = TracerProvider(
            resource=Resource.create({} if named else {"service.name": SERVICE}),
            id_generator=_Ids(),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headgate")

    def origin(self) -> Origin | None:
        context = trace.get_current_span().get_span_context()
        return Origin(_traceparent(context), time.time_ns()) if context.is_valid else None

    def begin(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        parent: str | None,
        kind: Kind = Kind.INTERNAL,
        at_ns: int | None = None,
        own: str | None = None,
    ) -> Span:
        # An empty context is a root; None would be whatever the caller stands in.
        # What was stored or sent elsewhere may have been spoilt there: then it is no parent.
        known = None if parent is None else accepted(parent)
        context = Context() if known is None else trace.set_span_in_context(_remote(known), Context())
        token = None if own is None else _own.set(int(own.split("-")[2], 16))
        try:
            span = self._tracer.start_span(name, context, _KINDS[kind], attributes, start_time=at_ns)
        finally:
            if token is not None:
                _own.reset(token)
        return OpenTelemetrySpan(span)

    @contextmanager
    def inside(self, span: Span) -> Iterator[None]:
        live = span.live if isinstance(span, OpenTelemetrySpan) else _remote(span.traceparent)
        # What an exception says may be secret: the span is told its kind, by whoever ends it.
        with trace.use_span(live, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def close(self) -> None:
        """Sends what is left, unless that takes too long."""
        # On a thread that is left behind: the SDK itself would wait for a collector for half a minute.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSING_SECONDS)


class OpenTelemetrySpan:
    """A `Span` of the SDK."""

    __slots__ = ("live", "traceparent")

    def __init__(self, live: trace.Span) -> None:
        self.live = live
        self.traceparent = _traceparent(live.get_span_context())

    def end(self, attributes: Attributes | None = None, *, failed: str | None = None, name: str | None = None) -> None:
        if not self.live.is_recording():
            return
        if name is not None:
            self.live.update_name(name)
        if attributes:
            self.live.set_attributes(attributes)
        if failed is not None:
            self.live.set_attribute("error.type", failed)
            self.live.set_status(Status(StatusCode.ERROR, failed))
        self.live.end()


def otlp_tracer() -> OpenTelemetryTracer:
    """Spans go to the collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names, over HTTP."""
    # Imported here: the console needs neither protobuf nor an HTTP client.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OpenTelemetryTracer(OTLPSpanExporter())


def console_tracer() -> OpenTelemetryTracer:
    """Spans go to standard error, as JSON, one a line."""
    return OpenTelemetryTracer(
        ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
    )


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _remote(traceparent: str) -> NonRecordingSpan:
    _, trace_id, span_id, flags = traceparent.split("-")
    sampled = TraceFlags(int(flags, 16) & TraceFlags.SAMPLED)
    return NonRecordingSpan(SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=sampled))
