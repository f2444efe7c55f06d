"""The export of this process's spans: none, to a collector, or to standard error.

`paceline.tracing` begins spans on whatever OpenTelemetry SDK is set up. Here it is set up for paceline's own processes.
It sends spans in batches from a separate thread. A collector that is slow or down costs spans, not requests: the queue
is bounded, and the excess is dropped. All else is configured by OpenTelemetry's variables: `OTEL_EXPORTER_OTLP_*`,
`OTEL_BSP_*`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from paceline import tracing
from paceline.errors import ConfigurationError
from paceline.extras import needed
from paceline.server.settings import Settings, spelled

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

SERVICE = "paceline"
CLOSING_SECONDS = 5.0
"""The timeout of the last export at shutdown."""
_flush: list[Callable[[], object]] = []
"""Of the provider that was set up here."""


def collect_traces(settings: Settings) -> None:
    """Sets up the SDK, unless traces are off or the application has set one up.

    While traces are off, nothing of OpenTelemetry is imported. Its own switch, OTEL_SDK_DISABLED, turns them off, too.

    Raises:
        ConfigurationError: an `OTEL_…` variable can't be used, or the extra `traces` is missing.
    """
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if settings.traces == "off" or disabled or tracing.is_on():
        return
    with needed("traces", "traces"):
        from opentelemetry import trace
    try:
        provider = span_provider(_otlp() if settings.traces == "otlp" else _console())
    except ValueError as error:
        problem = f"an OTEL_… variable does not fit: {settings.redacted(str(error))}"
        raise ConfigurationError(spelled("traces"), problem) from error
    trace.set_tracer_provider(provider)
    _flush.append(provider.force_flush)


@asynccontextmanager
async def traces_sent() -> AsyncIterator[None]:
    """On exit, exports the remaining spans, with a timeout of a few seconds."""
    try:
        yield
    finally:
        for flush in _flush:
            await asyncio.to_thread(_within_seconds, flush)


def span_provider(exporter: SpanExporter) -> TracerProvider:
    """A provider whose spans go to `exporter` in batches."""
    with needed("traces", "traces"):
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Random ids, except for spans whose id was chosen before they began."""

        takes_given_ids = True

        def generate_span_id(self) -> int:
            return tracing.given_span_id.get() or super().generate_span_id()

    # `Resource.create` lets the environment's service name win only over its own default.
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": SERVICE}),
        id_generator=Ids(),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _within_seconds(flush: Callable[[], object]) -> None:
    # On a daemon thread: the SDK's own timeout is half a minute.
    closing = threading.Thread(target=flush, daemon=True)
    closing.start()
    closing.join(CLOSING_SECONDS)


def _otlp() -> SpanExporter:
    """To the collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names, over HTTP."""
    with needed("traces", "traces"):
        # Imported here: the console needs neither protobuf nor an HTTP client.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _console() -> SpanExporter:
    """To standard error, as JSON, one span per line."""
    with needed("traces", "traces"):
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
