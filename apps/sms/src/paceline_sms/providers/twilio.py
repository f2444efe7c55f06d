"""The provider for Twilio's HTTP API, or a compatible one."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit
from xml.sax.saxutils import escape

from paceline.errors import InvalidInput
from paceline_sms.inbound import LONGEST_ID, Inbound, Reply
from paceline_sms.ports import Receipt
from paceline_sms.provider import Accepted, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.providers.http_calls import HttpCalls, basic_authorization, price_of
from paceline_sms.recipients import checked_phone

TIMEOUT_SECONDS = 10.0
NAME = "twilio"
OUR_ID = "messageId"
OPTED_OUT = 21610
BUSY_CODES = frozenset({20429, 21611, 30001})
"""The account's or the sender's queue is full, or there are too many requests: the same message is taken later."""
ACCOUNT_CODES = frozenset(
    {20003, 20005, 20006, 20008, 20403, 20404, 21212, 21603, 21606, 21620, 21659, 21660}
    | {21701, 21702, 21703, 21704, 21705, 30002, 63038}
)
"""About the account, its login, its sender or its messaging service: no message is at fault."""
NOTICED = ("accepted", "scheduled", "queued", "sending", "sent")
"""Statuses of a message that Twilio has, and that is not delivered yet."""


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
        inbound_url: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        log_texts: bool = False,
    ) -> None:
        self._token = auth_token.encode()
        self._sender = sender
        self._receipts_url = receipts_url
        self._inbound_url = inbound_url
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Authorization": basic_authorization(account_sid, auth_token),
        }
        messages = f"{url.rstrip('/')}/2010-04-01/Accounts/{account_sid}/Messages.json"
        self._calls = HttpCalls(NAME, messages, headers, timeout=timeout, log_texts=log_texts)

    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        if message.to is None:
            return Rejected("there is no number to send to: configure the user's phone, or send with to")
        sender = message.sender or self._sender
        service = sender.startswith("MG")
        form = {
            "To": message.to,
            "MessagingServiceSid" if service else "From": sender,
            "Body": message.text,
        }
        if self._receipts_url is not None:
            # With our id: a receipt names a message whose answer, with Twilio's id, was lost.
            form["StatusCallback"] = _with_id(self._receipts_url, message.id)
        answer = await self._calls.post(urlencode(form).encode(), {"Idempotency-Key": message.id})
        if isinstance(answer, Unknown):
            return answer
        document = answer.document()
        code, sid = document.get("code"), document.get("sid")
        if answer.is_success:
            if not isinstance(sid, str):
                return Unknown(f"Twilio answered {answer.status} without a sid")
            self._calls.log_sent(message)
            price, unit = price_of(document.get("price")), document.get("price_unit")
            currency = unit if isinstance(unit, str) and price is not None else None
            return Accepted(sid, _segments(document.get("num_segments")), price, currency)
        if code is None:
            raise Unavailable(f"the answer {answer.status} without an error code is not Twilio's")
        if code in BUSY_CODES:
            raise Unavailable(f"Twilio takes no more messages now: error {code}", throttled=True)
        if code in ACCOUNT_CODES:
            raise Unavailable(f"Twilio refuses the account: error {code}")
        return Rejected(f"Twilio answered {answer.status}, error {code}", opted_out=code == OPTED_OUT)

    def receipt(self, headers: Mapping[str, str], url: str, body: bytes) -> Receipt | None:
        """The receipt in a request to `/api/receipts/twilio`; None if its status says nothing of the message.

        Raises:
            InvalidInput: The signature is not right, or it is no receipt.
        """
        own = parse_qs(urlsplit(url).query).get(OUR_ID, [None])[0]
        address = url
        if self._receipts_url is not None:
            address = self._receipts_url if own is None else _with_id(self._receipts_url, own)
        values = self._signed_form(headers, address, body)
        status, sid = values.get("MessageStatus", ""), values.get("MessageSid", "")
        if not sid:
            raise InvalidInput("MessageSid", "is missing")
        if status in ("delivered", "read"):
            return Receipt(NAME, True, own, sid)
        if status in ("failed", "undelivered"):
            return Receipt(NAME, False, own, sid, f"error {values.get('ErrorCode', 'without a code')}")
        return Receipt(NAME, None, own, sid) if status in NOTICED else None

    def inbound(self, headers: Mapping[str, str], url: str, body: bytes) -> Inbound:
        """The message in a request to `/api/inbound/twilio`.

        Raises:
            InvalidInput: The signature is not right, or it is no message.
        """
        values = self._signed_form(headers, self._inbound_url or url, body)
        sid = values.get("MessageSid", "")
        if not (0 < len(sid) <= LONGEST_ID and sid.isprintable()):
            raise InvalidInput("MessageSid", f"must be a text of 1 to {LONGEST_ID} characters")
        return Inbound(sid, checked_phone(values.get("From"), "From"), values.get("Body", ""))

    def reply(self, text: str) -> Reply:
        """TwiML: Twilio sends `text` to the person; nothing if it is empty."""
        message = f"<Message>{escape(text)}</Message>" if text else ""
        document = f'<?xml version="1.0" encoding="UTF-8"?><Response>{message}</Response>'
        return Reply("application/xml", document.encode())

    def _signed_form(self, headers: Mapping[str, str], address: str, body: bytes) -> dict[str, str]:
        """The fields of a request that Twilio has signed for `address`.

        Raises:
            InvalidInput: The signature is not right, or it is no form.
        """
        try:
            fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=100)
        except ValueError:
            raise InvalidInput("body", "must be a form, as Twilio sends it") from None
        signed = address + "".join(name + value for name, value in sorted(fields))
        expected = base64.b64encode(hmac.new(self._token, signed.encode(), hashlib.sha1).digest()).decode()
        if not hmac.compare_digest(headers.get("x-twilio-signature", "").encode(), expected.encode()):
            raise InvalidInput("X-Twilio-Signature", "is not the signature of this request")
        return dict(fields)

    async def close(self) -> None:
        await self._calls.close()


def _segments(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() and len(text) < 4 and int(text) else None


def _with_id(url: str, message_id: str) -> str:
    """The URL of receipts, with our id of the message in its query."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({OUR_ID: message_id})}"
