"""The sender that posts each message to an HTTP provider."""

from __future__ import annotations

import logging

import httpx2

from headgate import tracing
from headgate.apps.notifications.model import Message
from headgate.apps.notifications.ports import SendFailed
from headgate.apps.notifications.providers.console import log_sent
from headgate.tracing import Span

TIMEOUT_SECONDS = 10.0
WORTH_A_RETRY = {408, 409, 425, 429}
"""Besides every 5xx."""

_log = logging.getLogger(__name__)


class WebhookSender:
    """`POST url` with JSON `{userId, message, messageId}` and `Idempotency-Key: {messageId}`.

    2xx: taken. 408, 409, 425, 429, 5xx, no answer: worth another try. Anything else: refused for good.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._url = url
        self._client = httpx2.AsyncClient(timeout=timeout)

    async def send(self, message: Message) -> None:
        body = {"userId": message.user_id, "message": message.text, "messageId": message.message_id}
        headers = {"Idempotency-Key": message.message_id}
        span = self._begin_span(headers)
        try:
            response = await self._client.post(self._url, json=body, headers=headers)
        except httpx2.HTTPError as error:
            if span is not None:
                span.end(failed=type(error).__name__)
            raise SendFailed(f"the provider did not answer: {type(error).__name__}") from error
        if span is not None:
            status = response.status_code
            span.end({"http.response.status_code": status}, failed=None if response.is_success else str(status))
        if response.is_success:
            log_sent(_log, message)
            return
        retry = response.status_code in WORTH_A_RETRY or response.status_code >= 500
        raise SendFailed(f"the provider answered {response.status_code}", permanent=not retry)

    def _begin_span(self, headers: dict[str, str]) -> Span | None:
        """The call as part of the trace that leads to it, with its `traceparent` in the request."""
        if (origin := tracing.origin()) is None:
            return None
        attributes = {"http.request.method": "POST"}
        span = tracing.begin("POST webhook", attributes, parent=origin.traceparent, kind="CLIENT")
        headers["traceparent"] = span.traceparent
        return span

    async def close(self) -> None:
        await self._client.aclose()
