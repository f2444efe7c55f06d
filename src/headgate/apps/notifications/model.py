"""Quotas, messages and outcomes, and the arithmetic of a window. Times are epoch milliseconds."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from headgate.errors import InvalidInput

LARGEST = 2**31 - 1
"""Of a user id, a limit and a window in minutes: 32 bits, as in every store."""
LONGEST_MESSAGE = 10_000
"""Characters. Far above any SMS, far below any broker's limit."""
LONGEST_KEY = 255
MINUTE_MS = 60_000
_KEYED = uuid.UUID("6d0e7d1a-8a0f-4f6e-9d43-3f1d1c6b7a52")
"""The namespace of message ids made from idempotency keys."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one user may send, and has sent, in the window that began at `refreshed_ms`."""

    user_id: int
    rate_limit: int
    window_minutes: int
    count: int
    refreshed_ms: int
    version: int = 1
    """Grows with every configuration, so that a copy of an older one is recognised."""
    generation: int = 0
    """Grows whenever the store counts by itself, so that a copy which missed that is recognised."""

    @property
    def window_ms(self) -> int:
        return self.window_minutes * MINUTE_MS

    @property
    def ends_ms(self) -> int:
        """The instant from which on the window counts as elapsed."""
        return self.refreshed_ms + self.window_ms

    @property
    def is_full(self) -> bool:
        return self.count >= self.rate_limit

    def current(self, now_ms: int) -> Quota:
        """The quota as of now: a new, empty window if the old one has elapsed (lazy refresh)."""
        return replace(self, count=0, refreshed_ms=now_ms) if now_ms >= self.ends_ms else self

    def counted(self, sends: int) -> Quota:
        """After the store itself counted some sends."""
        return replace(self, count=self.count + sends, generation=self.generation + 1)


class Spending(NamedTuple):
    """Sends a cache admitted and the store does not know of yet."""

    user_id: int
    version: int
    refreshed_ms: int
    generation: int
    total: int
    """The cache's count after the last of them."""
    sends: int

    def joined(self, later: Spending) -> Spending:
        """Both, made on the same copy."""
        return later._replace(total=max(self.total, later.total), sends=self.sends + later.sends)


def merge_spending(quota: Quota, spending: Spending) -> tuple[Quota, bool]:
    """The store's row brought in step with a cache, and whether the cache's copy is a valid one.

    On a valid copy the cache's count holds, and never lowers the row's. If the store has counted by itself since the
    copy was made, the sends are added: the copy's count did not know of the store's. Sends of another window or
    another configuration no longer matter.
    """
    if (quota.version, quota.refreshed_ms) != (spending.version, spending.refreshed_ms):
        return quota, False
    if quota.generation == spending.generation:
        return replace(quota, count=max(quota.count, spending.total)), True
    return replace(quota, count=quota.count + spending.sends), False


class Attempt(NamedTuple):
    """One call to send. Build it with `Attempt.of`, which checks."""

    user_id: int
    message: str
    message_id: str
    keyed: bool
    """The id comes from an idempotency key, so it may have been sent before."""
    call_id: str
    """Of this very call, among those with the same key."""
    now_ms: int | None = None
    traceparent: str | None = None
    """The trace its delivery will be part of."""

    @classmethod
    def of(cls, user_id: Any, message: Any, key: str | None = None, now_ms: int | None = None) -> Attempt:
        checked_integer(user_id, "user_id", 0)
        checked_message(message)
        call_id = str(uuid.uuid4())
        if key is None:
            return cls(user_id, message, call_id, False, call_id, now_ms)
        if not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
            raise InvalidInput("Idempotency-Key", f"must be 1 to {LONGEST_KEY} printable characters")
        return cls(user_id, message, str(uuid.uuid5(_KEYED, f"{user_id}:{key}")), True, call_id, now_ms)

    def to_record_value(self) -> str:
        """The message as the log carries it: JSON, in ASCII so that every store can keep every character."""
        return json.dumps({"userId": self.user_id, "message": self.message, "messageId": self.message_id})


class Outcome(StrEnum):
    SENT = "SENT"
    RATE_LIMITED = "RATE_LIMITED"
    FAILED = "FAILED"


class AttemptEvent(NamedTuple):
    """One attempt, for analytics."""

    event_id: str
    user_id: int
    outcome: Outcome
    at_ms: int

    def to_record_value(self) -> str:
        """The event as the log carries it."""
        return json.dumps(
            {"eventId": self.event_id, "userId": self.user_id, "outcome": self.outcome, "atMs": self.at_ms}
        )

    @classmethod
    def from_record_value(cls, value: str) -> AttemptEvent:
        """The event in a record of the log; `InvalidInput` if it is none."""
        try:
            document = json.loads(value)
            event = cls(document["eventId"], document["userId"], Outcome(document["outcome"]), document["atMs"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput("value", "is not an attempt event") from None
        if not (_is_id(event.event_id) and _is_integer(event.user_id) and _is_integer(event.at_ms)):
            raise InvalidInput("value", "is not an attempt event")
        return event


class Verdict(NamedTuple):
    """What came of an attempt. A refusal says when to come back; nothing was counted or published for it."""

    allowed: bool
    message_id: str
    used: int
    """The user's count after this."""
    rate_limit: int
    reset_after_ms: int
    """Until the window ends."""
    at_ms: int
    """When it was decided, by the clock of the store that decided."""
    replayed: bool = False
    """This idempotency key had been sent before; nothing was counted or published again."""


def decide(quota: Quota, attempt: Attempt, now_ms: int) -> tuple[Quota, Verdict]:
    """The decision on one attempt, and the quota in which it was made, not counted yet."""
    quota = quota.current(now_ms)
    allowed = not quota.is_full
    count = quota.count + 1 if allowed else quota.count
    return quota, Verdict(allowed, attempt.message_id, count, quota.rate_limit, quota.ends_ms - now_ms, now_ms)


def replay(quota: Quota, attempt: Attempt, now_ms: int) -> Verdict:
    """The answer to an idempotency key that was sent before."""
    quota = quota.current(now_ms)
    return Verdict(
        True, attempt.message_id, quota.count, quota.rate_limit, quota.ends_ms - now_ms, now_ms, replayed=True
    )


@dataclass(frozen=True, slots=True)
class Message:
    """A message on its way, as the sender sees it."""

    user_id: int
    text: str
    message_id: str

    @classmethod
    def from_record_value(cls, value: str) -> Message:
        """The message in a record of the log; `InvalidInput` if it is none."""
        try:
            document = json.loads(value)
            message = cls(document["userId"], document["message"], document["messageId"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput("value", "is not a message: an object with userId, message and messageId") from None
        if not (_is_integer(message.user_id) and isinstance(message.text, str) and _is_id(message.message_id)):
            raise InvalidInput("value", "is not a message: userId must be a number, message and messageId texts")
        return message


def checked_integer(value: Any, field: str, least: int) -> int:
    """`value`, which must be a whole number in range; true and false are none."""
    if not _is_integer(value) or not least <= value <= LARGEST:
        raise InvalidInput(field, f"must be a whole number from {least} to {LARGEST}")
    number: int = value
    return number


def checked_message(value: Any) -> str:
    """`value`, which must be a text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput("message", "must be a text that is not blank")
    if len(value) > LONGEST_MESSAGE:
        raise InvalidInput("message", f"must be at most {LONGEST_MESSAGE} characters long")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput("message", "holds half of a surrogate pair, which is no character")
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64
