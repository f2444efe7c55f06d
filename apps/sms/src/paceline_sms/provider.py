"""The protocol of SMS providers. Public as `paceline_sms`.

class MyProvider:
    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol
from zlib import crc32

from paceline.errors import PacelineError
from paceline_sms.model import storable
from paceline_sms.segments import Encoding, encoded, encoding_of, parts_of

LONGEST_PROVIDER_ID = 128
LONGEST_PRICE = 32
LONGEST_CURRENCY = 8


@dataclass(frozen=True, slots=True)
class SmsMessage:
    """A message as a provider receives it. Its text and its number are not in its repr.

    await post(message.to, message.text, key=message.id)
    """

    id: str
    """The same for every attempt: pass it on as an idempotency key."""
    to: str | None = field(repr=False)
    """E.164; None if neither the user nor the message has a number."""
    text: str = field(repr=False)
    segments: int
    attempt: int
    """1 for the first."""
    deadline: datetime
    """When the message expires."""
    user_id: int
    locale: str | None = None
    sender: str | None = None
    """Who it is from, by the settings; None: the provider's own sender."""

    @property
    def encoding(self) -> Encoding:
        """What the text is sent as: `GSM-7` if every character is of its alphabet, such as `ä`, `€` and `Ω`; else
        `UCS-2`."""
        return encoding_of(self.text)

    @property
    def user_data(self) -> bytes:
        """The text in its encoding: a septet per byte in GSM-7 (SMPP's `data_coding` 0), else UTF-16 (8)."""
        return encoded(self.text)

    def parts(self) -> list[bytes]:
        """The user data of each SMS, `segments` in number. If there are several, each begins with a concatenation
        header, which an SMSC is told of: `esm_class` 0x40. Every attempt makes the same parts."""
        return parts_of(self.text, crc32(self.id.encode()))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider accepted the message.

    return Accepted(provider_id=answer["id"], segments=2)
    """

    provider_id: str | None = None
    """The provider's own id, by which its receipts name the message."""
    segments: int | None = None
    price: Decimal | None = None
    currency: str | None = None
    """Of the price: ISO 4217."""

    @property
    def stored_id(self) -> str | None:
        """The provider's id as the store can keep it. The message was accepted, whatever the id's type: a numeric id in
        the provider's response must not cause a retry."""
        return None if self.provider_id is None else storable(str(self.provider_id), LONGEST_PROVIDER_ID)

    @property
    def stored_segments(self) -> int | None:
        """The provider's count as the store can keep it."""
        return self.segments if isinstance(self.segments, int) else None

    @property
    def stored_price(self) -> str | None:
        """The price as the store can keep it."""
        return None if self.price is None else str(self.price)[:LONGEST_PRICE]

    @property
    def stored_currency(self) -> str | None:
        """The currency as the store can keep it."""
        return None if self.currency is None else storable(str(self.currency), LONGEST_CURRENCY)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A final verdict on this message: a retry can't help. It becomes a dead letter.

    return Rejected("unknown number")
    """

    reason: str
    opted_out: bool = False
    """The recipient has told the provider to send nothing more: the number becomes an opt-out."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The message left, and nothing proves whether the provider took it: a timeout, a reset, an answer that says
    nothing. It is not sent by another provider; what follows is the provider's `on_unknown`.

    return Unknown("the connection ended before the answer")
    """

    reason: str


class OnUnknown(StrEnum):
    """What follows an `Unknown` answer."""

    HOLD = "hold"
    """Nothing is sent: the message is `unknown` until a receipt resolves it. After `hold_for` it is a dead letter."""
    RESEND = "resend"
    """The same provider gets it again, with the same id: for providers that recognise a repeated id."""
    FAIL = "fail"
    """It is `failed`, and a dead letter."""


class Unavailable(PacelineError):
    """The provider did not take the message: it can't accept messages now. The message waits, or goes to the next
    provider. So raise it only if it is certain that nothing was sent; else return `Unknown`.

    `retry_after` is in seconds, if the provider sent it. `throttled` means that it works, and limits the rate of calls.
    """

    def __init__(
        self,
        reason: str = "the provider is not available",
        *,
        retry_after: float | None = None,
        throttled: bool = False,
    ) -> None:
        self.retry_after = retry_after
        self.throttled = throttled
        super().__init__(reason)


class Provider(Protocol):
    """Sends messages. It may also have `async close()`; `receipt(headers, url, body)` for the delivery receipts that
    arrive at `/api/receipts/{name}`; `inbound(headers, url, body)` for the messages of people that arrive at
    `/api/inbound/{name}`, and `reply(text)` for the answer; and `receipts()`, an asynchronous generator, for receipts,
    and messages of people as `Inbound`, that arrive over its own connection. Its attribute `on_unknown` is `hold`
    unless it says `resend` or `fail`."""

    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        """Returns when the provider has accepted the message, or rejected it for good, or when nobody can know.

        Raises:
            Unavailable: The provider did not take it; the message is retried, or taken by another provider.
        """
        ...
