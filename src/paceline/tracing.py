"""Traces: all work done for one request, in any process and at any later time.

Spans go through OpenTelemetry's API to the SDK that the application has set up, and join the application's own trace.
Until the application imports the API, nothing is traced, and the only cost is a lookup in `sys.modules`. paceline
itself never imports it first.

The trace context travels as a W3C `traceparent`, a text of 55 characters that fits into a header, a column or a memo.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from opentelemetry import trace

LONGEST = 55
"""Characters of a traceparent."""
API = "opentelemetry.trace"
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?=$|-)")

Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
"""OpenTelemetry's span kinds."""


class Origin(NamedTuple):
    """The trace context and time at which work was requested; it travels with the work."""

    traceparent: str
    at_ns: int
    """When, in nanoseconds since the epoch, by this host's clock."""


Attributes = Mapping[str, str | int | float | bool]
"""Ids, names of configs, counts and outcomes. Never amounts, names of people, accounts, tokens or texts of messages."""


given_span_id: ContextVar[int] = ContextVar("paceline_span_id", default=0)
"""The id of the span that is about to begin, if it had to be known before. Read by an SDK's `id_generator` that has the
attribute `takes_given_ids`."""


class Span:
    """A span in progress."""

    __slots__ = ("live", "traceparent")

    def __init__(self, live: trace.Span) -> None:
        self.live = live
        self.traceparent = _traceparent(live.get_span_context())
        """The parent of its child spans, in any process."""

    def end(self, attributes: Attributes | None = None, *, failed: str | None = None, name: str | None = None) -> None:
        """Ends the span. `failed` names the kind of failure; `name` replaces the span's name. Only the first call
        counts."""
        live = self.live
        if not live.is_recording():
            return
        if name is not None:
            live.update_name(name)
        if attributes:
            live.set_attributes(attributes)
        if failed is not None:
            from opentelemetry.trace import Status, StatusCode

            live.set_attribute("error.type", failed)
            live.set_status(Status(StatusCode.ERROR, failed))
        live.end()


def is_on() -> bool:
    """Whether the application has set up an SDK, so that spans are collected."""
    api = sys.modules.get(API)
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def takes_given_ids() -> bool:
    """Whether the SDK uses a given span id."""
    api = sys.modules.get(API)
    provider = None if api is None else api.get_tracer_provider()
    return getattr(getattr(provider, "id_generator", None), "takes_given_ids", False)


def origin() -> Origin | None:
    """The caller's current span, or None if there is none."""
    api = sys.modules.get(API)
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    return Origin(_traceparent(context), time.time_ns()) if context.is_valid else None


def begin(
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: str | None,
    kind: Kind = "INTERNAL",
    at_ns: int | None = None,
    own: str | None = None,
) -> Span:
    """Begins a span, now or at a past time, under `parent` or as the root of a trace. `own` is its traceparent, if that
    had to be known before (`derived`). Call it only if `is_on`, or with an `origin`."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    # An empty context makes a root; None would mean the current span. A stored or received traceparent may
    # be malformed: then there is no parent.
    known = None if parent is None else accepted(parent)
    context = Context() if known is None else trace.set_span_in_context(_remote(known), Context())
    token = None if own is None else given_span_id.set(int(own.split("-")[2], 16))
    try:
        live = _tracer().start_span(name, context, trace.SpanKind[kind], attributes, start_time=at_ns)
    finally:
        if token is not None:
            given_span_id.reset(token)
    return Span(live)


@contextmanager
def inside(span: Span) -> Iterator[None]:
    """Makes `span` the current span of the block."""
    from opentelemetry.trace import use_span

    # An exception's message may be secret: the caller of `end` reports only its kind.
    with use_span(span.live, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        yield


def accepted(header: str) -> str | None:
    """The traceparent of a received header, or None if it is malformed."""
    match = _FORM.match(header)
    if match is None or (header.startswith("00") and len(header) != LONGEST):
        return None
    # Later versions may append fields that this version can't parse.
    return "00" + match.group()[2:]


def derived(parent: str, seed: str) -> str:
    """A traceparent under `parent` for `seed`: the same in every process."""
    version, trace, span, flags = parent.split("-")
    own = blake2b(f"{span}-{seed}".encode(), digest_size=8).hexdigest()
    return f"{version}-{trace}-{own}-{flags}"


_latest: tuple[Any, Any] = (None, None)
"""A provider and its tracer: an SDK takes longer to make one than to begin a span."""


def _tracer() -> trace.Tracer:
    global _latest  # noqa: PLW0603 - replaced when the application sets up its SDK, which is once
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    known, tracer = _latest
    if known is not provider:
        tracer = provider.get_tracer("paceline")
        _latest = provider, tracer
    return tracer  # type: ignore[no-any-return]


def _traceparent(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _remote(traceparent: str) -> trace.NonRecordingSpan:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    _, trace_id, span_id, flags = traceparent.split("-")
    sampled = TraceFlags(int(flags, 16) & TraceFlags.SAMPLED)
    return NonRecordingSpan(SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=sampled))
