"""The provider that posts each message to an HTTP address of yours."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

from paceline.errors import InvalidInput
from paceline_sms.inbound import LONGEST_ID, Inbound
from paceline_sms.ports import Receipt
from paceline_sms.provider import Accepted, Rejected, SmsMessage, Unknown
from paceline_sms.providers.http_calls import HttpCalls, price_of
from paceline_sms.recipients import checked_phone

TIMEOUT_SECONDS = 10.0
NAME = "webhook"


class WebhookProvider:
    """`POST url` with JSON `{userId, message, messageId, to?}` and `Idempotency-Key: {messageId}`.

    2xx: taken; a JSON answer may have `id`, `segments`, `price` and `currency`. 400, 410, 413, 415, 422 and other 4xx:
    a verdict on the message. 401, 403, 404, 405, 407, 408, 425, 429, 503, 3xx, no connection: not taken, the message
    waits. 409, other 5xx, no answer, a page of HTML: nobody knows whether it was taken.

    With `hmac_key` the body is signed: `X-Signature: sha256=<hex>`. Receipts, signed the same way, are JSON
    `{messageId, status: "delivered" | "failed", reason?}`; messages of people are `{id, from, text}`.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        hmac_key: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        log_texts: bool = False,
    ) -> None:
        headers = {"Content-Type": "application/json", **(headers or {})}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._key = None if hmac_key is None else hmac_key.encode()
        self._calls = HttpCalls(NAME, url, headers, timeout=timeout, log_texts=log_texts)

    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        document = {"userId": message.user_id, "message": message.text, "messageId": message.id}
        if message.to is not None:
            document["to"] = message.to
        if message.sender is not None:
            document["from"] = message.sender
        body = json.dumps(document).encode()
        headers = {"Idempotency-Key": message.id}
        if self._key is not None:
            headers["X-Signature"] = self._signature(body)
        answer = await self._calls.post(body, headers)
        if isinstance(answer, Unknown):
            return answer
        if not answer.is_success:
            return Rejected(f"the provider answered {answer.status}")
        self._calls.log_sent(message)
        result = answer.document()
        provider_id, segments, currency = result.get("id"), result.get("segments"), result.get("currency")
        return Accepted(
            str(provider_id) if isinstance(provider_id, str | int) else None,
            segments if isinstance(segments, int) and 0 < segments < 1000 else None,
            price_of(result.get("price")),
            currency if isinstance(currency, str) else None,
        )

    def receipt(self, headers: Mapping[str, str], url: str, body: bytes) -> Receipt:
        """The receipt in a request to `/api/receipts/webhook`.

        Raises:
            InvalidInput: The signature is not right, or it is no receipt.
        """
        self._check_signature(headers, body)
        try:
            document = json.loads(body)
            message_id, status, reason = document["messageId"], document["status"], document.get("reason", "")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InvalidInput("body", "must be JSON with messageId and status") from None
        if not isinstance(message_id, str) or not isinstance(reason, str) or status not in ("delivered", "failed"):
            raise InvalidInput("status", "must be delivered or failed, and messageId a text")
        return Receipt(NAME, status == "delivered", message_id, reason=reason)

    def inbound(self, headers: Mapping[str, str], url: str, body: bytes) -> Inbound:
        """The message in a request to `/api/inbound/webhook`: JSON `{id, from, text}`.

        Raises:
            InvalidInput: The signature is not right, or it is no message.
        """
        self._check_signature(headers, body)
        try:
            document = json.loads(body)
            inbound_id, phone, text = document["id"], document["from"], document["text"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput("body", "must be JSON with id, from and text") from None
        if not (isinstance(inbound_id, str) and 0 < len(inbound_id) <= LONGEST_ID and inbound_id.isprintable()):
            raise InvalidInput("id", f"must be a text of 1 to {LONGEST_ID} printable characters")
        if not isinstance(text, str):
            raise InvalidInput("text", "must be a text")
        return Inbound(inbound_id, checked_phone(phone, "from"), text)

    def _check_signature(self, headers: Mapping[str, str], body: bytes) -> None:
        if self._key is None:
            raise InvalidInput("X-Signature", "calls of the provider need PACELINE_SMS_WEBHOOK_HMAC_KEY")
        if not hmac.compare_digest(headers.get("x-signature", "").encode(), self._signature(body).encode()):
            raise InvalidInput("X-Signature", "is not the signature of this body")

    def _signature(self, body: bytes) -> str:
        return "sha256=" + hmac.new(self._key or b"", body, hashlib.sha256).hexdigest()

    async def close(self) -> None:
        await self._calls.close()
