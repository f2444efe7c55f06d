"""The sender that posts each message to an HTTP provider."""

from __future__ import annotations

import logging

import httpx

from headgate.adapters.senders.console import log_sent
from headgate.apps.notifications.model import Message
from headgate.apps.notifications.ports import SendFailed

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
        self._client = httpx.AsyncClient(timeout=timeout)

    async def send(self, message: Message) -> None:
        body = {"userId": message.user_id, "message": message.text, "messageId": message.message_id}
        try:
            response = await self._client.post(self._url, json=body, headers={"Idempotency-Key": message.message_id})
        except httpx.HTTPError as error:
            raise SendFailed(f"the provider did not answer: {type(error).__name__}") from error
        if response.is_success:
            log_sent(_log, message)
            return
        retry = response.status_code in WORTH_A_RETRY or response.status_code >= 500
        raise SendFailed(f"the provider answered {response.status_code}", permanent=not retry)

    async def close(self) -> None:
        await self._client.aclose()
