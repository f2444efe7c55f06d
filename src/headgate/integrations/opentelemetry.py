"""Spans of slots and queues in a program of your own, through OpenTelemetry: `pip install 'headgate[traces]'`.

tracer = OpenTelemetryTracer(OTLPSpanExporter())
async with DispatchQueue.open("sqlite:///headgate.db", tracer=tracer) as queue: ...
"""

from __future__ import annotations

from headgate.adapters.opentelemetry.tracer import OpenTelemetryTracer

__all__ = ["OpenTelemetryTracer"]
