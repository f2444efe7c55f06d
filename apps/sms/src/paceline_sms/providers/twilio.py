"""The provider for Twilio's HTTP API, or a compatible one."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import parse_qsl, urlencode

from paceline.errors import InvalidInput
from paceline_sms.ports import Receipt
from paceline_sms.provider import Accepted, Rejected, SmsMessage, Unavailable
from paceline_sms.providers.http_calls import HttpCalls, basic_authorization

TIMEOUT_SECONDS = 10.0
NAME = "twilio"
_ACCOUNT_ERRORS = {20003, 20005, 20404, 20429, 30001, 30002}
"""Error codes about the account, the login or its queue, not about the message."""


class TwilioProvider:
    """`POST {url}/2010-04-01/Accounts/{sid}/Messages.json` with `To`, `From`, `Body` and basic authentication."""

    def __init__(
        self,
        account_sid: str,
        auth_token: str,
        sender: str,
        *,
        url: str = "https://api.twilio.com",
        receipts_url: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        log_texts: bool = False,
    ) -> None:
        self._token = auth_token.encode()
        self._sender = sender
        self._receipts_url = receipts_url
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Authorization": basic_authorization(account_sid, auth_token),
        }
        messages = f"{url.rstrip('/')}/2010-04-01/Accounts/{account_sid}/Messages.json"
        self._calls = HttpCalls(NAME, messages, headers, timeout=timeout, log_texts=log_texts)

    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        if message.to is None:
            return Rejected("there is no number to send to: configure the user's phone, or send with to")
        service = self._sender.startswith("MG")
        form = {
            "To": message.to,
            "MessagingServiceSid" if service else "From": self._sender,
            "Body": message.text,
        }
        if self._receipts_url is not None:
            form["StatusCallback"] = self._receipts_url
        answer = await self._calls.post(urlencode(form).encode(), {"Idempotency-Key": message.id})
        document = answer.document()
        if answer.is_success:
            self._calls.log_sent(message)
            return Accepted(document.get("sid"), _segments(document.get("num_segments")), _price(document.get("price")))
        if document.get("code") in _ACCOUNT_ERRORS:
            raise Unavailable(f"Twilio refuses the account: error {document['code']}")
        return Rejected(f"Twilio answered {answer.status}, error {document.get('code', 'without a code')}")

    def receipt(self, headers: Mapping[str, str], url: str, body: bytes) -> Receipt | None:
        """The receipt in a request to `/api/receipts/twilio`; None if its status is not final.

        Raises:
            InvalidInput: The signature is not right, or it is no receipt.
        """
        try:
            fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=100)
        except ValueError:
            raise InvalidInput("body", "must be a form, as Twilio sends it") from None
        signed = (self._receipts_url or url) + "".join(name + value for name, value in sorted(fields))
        expected = base64.b64encode(hmac.new(self._token, signed.encode(), hashlib.sha1).digest()).decode()
        if not hmac.compare_digest(headers.get("x-twilio-signature", ""), expected):
            raise InvalidInput("X-Twilio-Signature", "is not the signature of this request")
        values = dict(fields)
        status, sid = values.get("MessageStatus", ""), values.get("MessageSid", "")
        if not sid:
            raise InvalidInput("MessageSid", "is missing")
        if status in ("delivered", "read"):
            return Receipt(NAME, True, provider_id=sid)
        if status in ("failed", "undelivered"):
            return Receipt(NAME, False, provider_id=sid, reason=f"error {values.get('ErrorCode', 'without a code')}")
        return None

    async def close(self) -> None:
        await self._calls.close()


def _segments(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() and len(text) < 4 and int(text) else None


def _price(text: Any) -> Decimal | None:
    try:
        return Decimal(text) if isinstance(text, str) else None
    except InvalidOperation:
        return None
