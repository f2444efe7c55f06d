"""`envoy.service.ratelimit.v3.RateLimitService`: requests and answers as Envoy writes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import grpc
import structlog
from google.protobuf.message import DecodeError

from paceline.errors import InvalidInput, PacelineError, StoreUnavailable
from paceline.limits import headers
from paceline.limits.model import Rule
from paceline.server.envoy.admission import Descriptor, DescriptorLimiter, Outcome, Status, is_over
from paceline.server.envoy.descriptors import Unit
from paceline.server.envoy.messages import OK, OVER_LIMIT, UNITS, RateLimitRequest, RateLimitResponse
from paceline.server.grpc.access import GrpcAccess
from paceline.server.metrics.envoy import EnvoyMetrics

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
MAX_DESCRIPTORS = 100
MAX_ENTRIES = 32
MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 4096, 512
"""The size of the cache of parsed requests, and the longest request in it."""
UNLIMITED = 2**32 - 1

_UNITS = {round(unit.window.total_seconds() * 1_000_000): UNITS[unit.name] for unit in Unit}
_OVERRIDE_UNITS = {UNITS[unit.name]: unit for unit in Unit}


class RateLimitServicer:
    """Answers Envoy. `response_headers` says which fields Envoy is to add: `ietf`, `legacy` or `off`."""

    def __init__(
        self,
        limiter: DescriptorLimiter,
        access: GrpcAccess,
        metrics: EnvoyMetrics,
        response_headers: str = "ietf",
        *,
        shadow: bool = False,
    ) -> None:
        """With `shadow`, every request passes."""
        self._limiter = limiter
        self._access = access
        self._metrics = metrics
        self._shadow = shadow
        self._headers = {"ietf": _ietf_headers, "legacy": _legacy_headers}.get(response_headers, _no_headers)
        self._log = structlog.get_logger("paceline.envoy")

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler for a gRPC server."""
        method = grpc.unary_unary_rpc_method_handler(
            self.should_rate_limit,
            request_deserializer=_parsed,
            response_serializer=RateLimitResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})

    async def should_rate_limit(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Decides one request of Envoy."""
        await self._access.admit(context)
        if isinstance(request, BadRequest):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(request))
        try:
            outcome = await self._limiter.decide(request.domain, request.descriptors)
        except PacelineError as error:
            # Envoy decides by failure_mode_deny. The text may name hosts: it is logged, and not sent.
            self._metrics.failed(type(error).__name__)
            self._log.warning("a request of Envoy could not be decided", domain=request.domain, error=repr(error))
            code = grpc.StatusCode.UNAVAILABLE if isinstance(error, StoreUnavailable) else grpc.StatusCode.INTERNAL
            await context.abort(code, type(error).__name__)
        self._metrics.decided(outcome)
        response = RateLimitResponse(overall_code=OK if outcome.allowed or self._shadow else OVER_LIMIT)
        for status in outcome.statuses:
            _add_status(response, status)
        for name, value in self._headers(outcome):
            response.response_headers_to_add.add(key=name, value=value)
        return response


class BadRequest(InvalidInput):
    """A request that Envoy would not send."""


class ParsedRequest(NamedTuple):
    """The parsed request."""

    domain: str
    descriptors: Sequence[Descriptor]


def _parsed(message: bytes) -> ParsedRequest | BadRequest:
    """The request, or what is wrong with it. An error raised here would be reported as a server error."""
    try:
        return _read_again(message) if len(message) <= MAX_REMEMBERED_BYTES else _read(message)
    except DecodeError:
        return BadRequest("message", "is no RateLimitRequest")
    except BadRequest as error:
        return error


def _read(message: bytes) -> ParsedRequest:
    request = RateLimitRequest.FromString(message)
    return ParsedRequest(request.domain, _descriptors(request))


_read_again = lru_cache(MAX_REMEMBERED)(_read)
"""Envoy sends equal bytes for equal requests of the same caller."""


def _descriptors(request: Any) -> list[Descriptor]:
    descriptors = request.descriptors
    if not request.domain:
        raise BadRequest("domain", "must not be empty")
    if not 0 < len(descriptors) <= MAX_DESCRIPTORS:
        raise BadRequest("descriptors", f"must be from 1 to {MAX_DESCRIPTORS}, not {len(descriptors)}")
    hits = request.hits_addend or 1  # 0 means that the request has no hits_addend
    return [_descriptor(written, hits, index) for index, written in enumerate(descriptors)]


def _descriptor(written: Any, hits: int, index: int) -> Descriptor:
    entries = [(entry.key, entry.value) for entry in written.entries]
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise BadRequest(f"descriptors[{index}].entries", f"must be from 1 to {MAX_ENTRIES}, not {len(entries)}")
    reported, override = written.HasField("hits_addend"), None
    if reported:
        hits = -written.hits_addend.value if written.is_negative_hits else written.hits_addend.value
    if written.HasField("limit"):
        unit = _OVERRIDE_UNITS.get(written.limit.unit)
        if unit is None:
            raise BadRequest(f"descriptors[{index}].limit.unit", f"{written.limit.unit} is unknown")
        override = (written.limit.requests_per_unit, unit)
    return Descriptor(entries, hits, reported, override)


def _add_status(response: Any, status: Status) -> None:
    match, rule = status.match, status.rule
    if match is None:
        response.statuses.add(code=OK)
        return
    if rule is None:
        limit = match.limit
        if limit.unlimited:
            response.statuses.add(code=OK, limit_remaining=UNLIMITED)
            return
        written = response.statuses.add(code=OVER_LIMIT if is_over(status) else OK)
        if limit.blocks and limit.unit is not None:
            window_us = round(limit.unit.window.total_seconds() * 1_000_000)
            written.current_limit.unit = _UNITS[window_us]
            written.current_limit.name = limit.name
            written.duration_until_reset.seconds = window_us // 1_000_000
        return
    written = response.statuses.add(
        code=OVER_LIMIT if is_over(status) else OK, limit_remaining=min(status.remaining, UNLIMITED)
    )
    written.duration_until_reset.seconds = headers.seconds_up(status.reset_after_us)
    current = written.current_limit
    current.requests_per_unit = min(rule.size, UNLIMITED)
    current.unit = _UNITS.get(_window_us(rule), UNITS["UNKNOWN"])
    if match.limit.name:
        current.name = match.limit.name


def _window_us(rule: Rule) -> int:
    """The window of a rule; of a token bucket, the time it takes to fill."""
    window_us: int = getattr(rule.spec, "window_us", 0) or getattr(rule.spec, "life_us", 0)
    return window_us


def _ietf_headers(outcome: Outcome) -> Sequence[tuple[str, str]]:
    """`RateLimit`, `RateLimit-Policy` and, on a denial, `Retry-After`."""
    return () if outcome.decision is None else headers.fields(outcome.decision, outcome.rules)


def _legacy_headers(outcome: Outcome) -> Sequence[tuple[str, str]]:
    """The fields of envoyproxy/ratelimit, of the descriptor with the least left."""
    known = [status for status in outcome.statuses if status.rule is not None and not status.rule.shadow]
    if not known:
        return ()
    least = min(known, key=lambda status: (status.allowed, status.remaining))
    assert least.rule is not None
    return (
        ("RateLimit-Limit", str(least.rule.size)),
        ("RateLimit-Remaining", str(least.remaining if least.allowed else 0)),
        ("RateLimit-Reset", str(headers.seconds_up(least.reset_after_us))),
    )


def _no_headers(outcome: Outcome) -> Sequence[tuple[str, str]]:
    return ()
