"""A `BlockingDownstream` under requests: an adapter whose requests wait for their turn.

    session = requests.Session()
    session.mount("https://partner.example", LimitedAdapter(partner))

A call ends, and is settled, when its body has been read, was closed or was cut off. A request that could not leave in
time raises an error that is both `RateLimitExceeded` and `RequestException`, and nothing is sent. Responses are not
changed; there are no retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.downstream._blocking import BlockingDownstream
from paceline.downstream.background_downstream import check_blocking
from paceline.downstream.client_calls import (
    DEFAULT_KEY,
    DEFAULT_TIMEOUT,
    Body,
    ClientCalls,
    CostsOf,
    KeyOf,
    Settle,
    sending,
)
from paceline.downstream.verdicts import Answer
from paceline.errors import RateLimitExceeded
from paceline.extras import needed
from paceline.limits.model import Decision

with needed("paceline.integrations.requests", "requests"):
    from requests import PreparedRequest, RequestException, Response
    from requests.adapters import HTTPAdapter

__all__ = ["LimitedAdapter"]


class LimitedAdapter(HTTPAdapter):
    """For `Session.mount`. `settle`, `costs`, `key` and `timeout` are those of `BlockingDownstream.transport`; other
    options are those of `HTTPAdapter`. Connecting may take no longer than the downstream's `call_timeout`.

    Raises:
        ConfigurationError: an option can't be used, or it is no `BlockingDownstream`.
    """

    def __init__(
        self,
        downstream: BlockingDownstream,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
        **options: Any,
    ) -> None:
        check_blocking(downstream, "requests")
        self._calls = ClientCalls(downstream, settle, costs, key, timeout)
        self._call_timeout = downstream.call_timeout
        super().__init__(**options)

    def send(  # type: ignore[override]  # the others are passed on
        self, request: PreparedRequest, stream: bool = False, timeout: Any = None, **options: Any
    ) -> Response:
        call = self._calls.call_of(request)
        if call is None:
            return super().send(request, stream=stream, timeout=timeout, **options)
        with sending(call, lambda decision: _RequestRefused(decision, request)):
            response = super().send(request, stream=stream, timeout=self._bounded(timeout), **options)
            call.responded(response.status_code, response.headers.get)
        self._leave_at_end(call, response)
        return response

    def _bounded(self, timeout: Any) -> Any:
        """The timeout, with a bound for connecting: a call must not leave long after its turn."""
        connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        return (self._call_timeout if connect is None else min(connect, self._call_timeout), read)

    def _leave_at_end(self, call: Any, response: Any) -> None:
        """Ends the call when the body has been read, has failed, or is closed. `Response` has no hook for it, and a
        body that was read is not closed."""
        iter_content, close = response.iter_content, response.close
        body, calls = Body(self._calls.reads_bodies), [call]

        def end(is_whole: bool) -> None:
            if calls:
                answer = Answer.of(response.status_code, body.content(), response.headers.get, whole=is_whole)
                self._calls.settle(call, answer)
                calls.clear()
                call.leave()

        def iter_and_end(chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[Any]:
            is_whole = False
            try:
                for part in iter_content(chunk_size, decode_unicode):
                    body.add(part if isinstance(part, bytes) else part.encode())
                    yield part
                is_whole = True
            finally:
                end(is_whole)

        def close_and_end() -> None:
            try:
                close()
            finally:
                end(False)

        response.iter_content, response.close = iter_and_end, close_and_end


class _RequestRefused(RateLimitExceeded, RequestException):
    """A request that was not sent: there was no room for it in time."""

    def __init__(self, decision: Decision, request: PreparedRequest | None = None) -> None:
        RequestException.__init__(self, str(RateLimitExceeded(decision)), request=request)
        self.decision = decision
