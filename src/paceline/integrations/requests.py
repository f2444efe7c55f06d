"""Outbound limits for requests: an adapter that delays requests.

    session = requests.Session()
    session.mount("https://partner.example", LimitedAdapter(limiter, "partner"))

A request waits for its own limit, and for the server's: after a `Retry-After`, or a `RateLimit` or `X-RateLimit-*` with
nothing left, calls to that server pause for the time it gives. If the wait would exceed `max_wait` seconds, it raises
an error that is both `RateLimitExceeded` and `RequestException`, and nothing is sent. Responses are not changed; there
are no retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.limit import Cost, Exempt, OfResponse, Plans
from paceline.integrations.outbound import OutboundKey, OutboundLimiter
from paceline.limits._blocking import Limiter
from paceline.limits.model import Decision

with needed("paceline.integrations.requests", "requests"):
    from requests import PreparedRequest, RequestException, Response
    from requests.adapters import HTTPAdapter

__all__ = ["LimitedAdapter"]


class LimitedAdapter(HTTPAdapter):
    """For `Session.mount`. `key` defaults to the host. Plans, key and cost may be functions of the request; for
    `exempt`, `charge_when` and `cost_of_response` see `OutboundOptions`. Other options are those of `HTTPAdapter`."""

    def __init__(
        self,
        limiter: Limiter,
        plans: Plans,
        *,
        key: OutboundKey | None = None,
        cost: Cost = 1,
        max_wait: float = 30.0,
        exempt: Exempt | None = None,
        charge_when: OfResponse[bool] | None = None,
        cost_of_response: OfResponse[int] | None = None,
        **options: Any,
    ) -> None:
        self._outbound = OutboundLimiter(
            limiter,
            plans,
            key,
            cost,
            max_wait,
            exempt=exempt,
            charge_when=charge_when,
            cost_of_response=cost_of_response,
        )
        super().__init__(**options)

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        host = urlsplit(request.url or "").netloc.rpartition("@")[2]
        try:
            charges = self._outbound.wait(host, request)
        except RateLimitExceeded as error:
            raise _RequestRefused(error.decision, request) from None
        try:
            response = super().send(request, *args, **kwargs)
            self._outbound.record_response(host, response.status_code, response.headers.get)
            places = self._outbound.settle(charges, request, response.status_code, response)
        except BaseException:
            self._outbound.release(charges)
            raise
        if places:
            _call_at_end(response, partial(self._outbound.release, places))
        return response


def _call_at_end(response: Any, end: Callable[[], None]) -> None:
    """Calls `end` when the body has been read, has failed, or is closed. `Response` has no hook for it, and a body that
    was read is not closed."""
    iter_content, close = response.iter_content, response.close

    def iter_and_end(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from iter_content(*args, **kwargs)
        finally:
            end()

    def close_and_end() -> None:
        try:
            close()
        finally:
            end()

    response.iter_content, response.close = iter_and_end, close_and_end


class _RequestRefused(RateLimitExceeded, RequestException):
    """A request that was not sent: there was no room for it within `max_wait`."""

    def __init__(self, decision: Decision, request: PreparedRequest | None = None) -> None:
        RequestException.__init__(self, str(RateLimitExceeded(decision)), request=request)
        self.decision = decision
