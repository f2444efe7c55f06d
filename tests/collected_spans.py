"""Spans of a test: an SDK is set up as an application would set one up, and taken away again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.server.wiring.telemetry import span_provider


class Collected:
    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        self.provider, self._exporter = provider, exporter

    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended, in the order of their ends."""
        self.provider.force_flush()
        assert isinstance(self._exporter, InMemorySpanExporter)
        return list(self._exporter.get_finished_spans())


@contextmanager
def collecting(
    monkeypatch: pytest.MonkeyPatch, exporter: SpanExporter | None = None, provider: TracerProvider | None = None
) -> Iterator[Collected]:
    """Inside, spans go to `exporter`, or to memory. OpenTelemetry has no public way to take a provider away again."""
    exporter = exporter or InMemorySpanExporter()
    provider = provider or span_provider(exporter)
    with monkeypatch.context() as patched:
        patched.setattr(trace, "_TRACER_PROVIDER", provider)
        yield Collected(provider, exporter)
    provider.shutdown()
