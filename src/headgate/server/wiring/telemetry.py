"""Traces: off, to a collector, or to standard error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headgate.errors import ConfigurationError
from headgate.server.settings import Settings
from headgate.tracing import Tracer

if TYPE_CHECKING:
    from headgate.integrations.opentelemetry import OpenTelemetryTracer

_tracers: dict[str, OpenTelemetryTracer] = {}
"""One a process and kind, since each has a thread and a queue of its own."""


def get_tracer(settings: Settings) -> Tracer | None:
    """The tracer of this process; None while traces are off, and then nothing of OpenTelemetry is imported. Its own
    switch, OTEL_SDK_DISABLED, turns them off, too."""
    if settings.traces == "off" or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    known = _tracers.get(settings.traces)
    if known is None:
        from headgate.integrations.opentelemetry import console_tracer, otlp_tracer

        try:
            known = otlp_tracer() if settings.traces == "otlp" else console_tracer()
        except ValueError as error:
            raise ConfigurationError(
                "traces", f"an OTEL_… variable does not fit: {settings.redacted(str(error))}"
            ) from error
        _tracers[settings.traces] = known
    return known


@asynccontextmanager
async def tracing(settings: Settings) -> AsyncIterator[Tracer | None]:
    """The tracer; leaving sends what is left to send, for a few seconds at most."""
    try:
        yield get_tracer(settings)
    finally:
        known = _tracers.pop(settings.traces, None)
        if known is not None:
            await asyncio.to_thread(known.close)
