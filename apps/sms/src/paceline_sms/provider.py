"""The protocol of SMS providers. Public as `paceline_sms`.

class MyProvider:
    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from paceline.errors import PacelineError
from paceline_sms.model import storable

LONGEST_PROVIDER_ID = 128


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


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider accepted the message.

    return Accepted(provider_id=answer["id"], segments=2)
    """

    provider_id: str | None = None
    """The provider's own id, by which its receipts name the message."""
    segments: int | None = None
    price: Decimal | None = None

    @property
    def stored_id(self) -> str | None:
        """The provider's id as the store can keep it. The message was accepted, whatever the id's type: a numeric id in
        the provider's response must not cause a retry."""
        return None if self.provider_id is None else storable(str(self.provider_id), LONGEST_PROVIDER_ID)

    @property
    def stored_segments(self) -> int | None:
        """The provider's count as the store can keep it."""
        return self.segments if isinstance(self.segments, int) else None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A final verdict on this message: a retry can't help. It becomes a dead letter.

    return Rejected("unknown number")
    """

    reason: str


class Unavailable(PacelineError):
    """The provider can't accept messages now. The message waits for a retry.

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
    """Sends messages. It may also have `async close()`, `receipt(headers, url, body)` for the delivery receipts that
    arrive at `/api/receipts/{name}`, and `receipts()`, an asynchronous generator, for those that arrive over its own
    connection."""

    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        """Returns when the provider has accepted the message, or rejected it for good.

        Raises:
            Unavailable: Neither; the message is retried.
        """
        ...
