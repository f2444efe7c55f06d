"""The protocol of SMS providers. Public as `headgate.sms`.

class MyProvider:
    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from headgate.apps.notifications.model import storable
from headgate.errors import HeadgateError

LONGEST_PROVIDER_ID = 128


@dataclass(frozen=True, slots=True)
class SmsMessage:
    """A message as a provider is given it. Its text and its number stay out of every repr."""

    id: str
    """The same for every attempt: pass it on, so that the other side can recognise a repetition."""
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


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider has taken the message."""

    provider_id: str | None = None
    """The provider's own id, by which its receipts name the message."""
    segments: int | None = None
    price: Decimal | None = None

    @property
    def stored_id(self) -> str | None:
        """The provider's id as the store can keep it. Whatever it is, the message was taken: an id that is a number in
        the provider's answer must not make it be sent again."""
        return None if self.provider_id is None else storable(str(self.provider_id), LONGEST_PROVIDER_ID)

    @property
    def stored_segments(self) -> int | None:
        """The provider's count as the store can keep it."""
        return self.segments if isinstance(self.segments, int) else None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A verdict on this message: no other attempt would end otherwise. It becomes a dead letter."""

    reason: str


class Unavailable(HeadgateError):
    """The provider can't take messages now. That is no property of the message, which waits for another attempt.

    `retry_after` is in seconds, if the provider said so. `throttled` means: it works, and wants fewer calls.
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
    """Hands messages to a network. It may also have `async close()`, `receipt(headers, url, body)` for the delivery
    receipts that arrive at `/api/receipts/{name}`, and `receipts()`, an asynchronous generator, for those that arrive
    over its own connection."""

    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        """Returns when the provider has taken the message, or has refused it for good.

        Raises:
            Unavailable: Neither; the message is tried again.
        """
        ...
