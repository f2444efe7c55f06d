"""What HTTP providers share: the call in its trace, what each answer means, the log line without the text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import httpx2

from headgate import tracing
from headgate.apps.notifications.provider import SmsMessage, Unavailable
from headgate.apps.notifications.providers.console import on_one_line
from headgate.apps.notifications.recipients import masked

THROTTLED = {429, 503}
"""With `Retry-After` the provider works and wants fewer calls."""
NO_VERDICT = {401, 403, 404, 405, 407, 408, 409, 425, 429}
"""Besides 3xx and 5xx: the connection is wrong or busy, whatever the message is."""

_log = logging.getLogger(__name__)


class HttpCalls:
    """Posts to one address."""

    def __init__(self, name: str, *, timeout: float, log_texts: bool, **client: Any) -> None:
        self._name = name
        self._log_texts = log_texts
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        self._client = httpx2.AsyncClient(timeout=timeout, limits=limits, **client)

    async def post(self, url: str, *, headers: Mapping[str, str], **body: Any) -> httpx2.Response:
        """The answer, if it is a verdict on the message.

        Raises:
            Unavailable: It is none, or there is no answer.
        """
        headers = dict(headers)
        span = None
        if (origin := tracing.origin()) is not None:
            attributes = {"http.request.method": "POST"}
            span = tracing.begin(f"POST {self._name}", attributes, parent=origin.traceparent, kind="CLIENT")
            headers["traceparent"] = span.traceparent
        try:
            response = await self._client.post(url, headers=headers, **body)
        except httpx2.HTTPError as error:
            if span is not None:
                span.end(failed=type(error).__name__)
            raise Unavailable(f"the provider did not answer: {type(error).__name__}") from error
        status = response.status_code
        if span is not None:
            span.end({"http.response.status_code": status}, failed=None if response.is_success else str(status))
        if status in NO_VERDICT or status >= 500 or 300 <= status < 400:
            retry_after = _seconds(response.headers.get("retry-after"))
            throttled = status in THROTTLED and retry_after is not None
            raise Unavailable(f"the provider answered {status}", retry_after=retry_after, throttled=throttled)
        return response

    def log_sent(self, message: SmsMessage) -> None:
        """The line of a message that is out: its text only if the settings say so."""
        ids = {"user_id": message.user_id, "message_id": message.id}
        if self._log_texts:
            _log.info("SMS Sent: %d: %s", message.user_id, on_one_line(message.text), extra=ids)
        else:
            _log.info(
                "SMS Sent: %d: %s to %s, %d segments",
                message.user_id,
                message.id,
                masked(message.to),
                message.segments,
                extra=ids,
            )

    async def close(self) -> None:
        await self._client.aclose()


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds. A date is not read: no provider sends one."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 6):
        return None
    return float(text)
