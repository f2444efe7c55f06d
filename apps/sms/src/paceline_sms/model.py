"""Attempts to send, their verdicts, and messages. Times are epoch milliseconds."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from paceline.durations import parse_duration, parse_instant, to_ms
from paceline.errors import InvalidInput, PacelineError
from paceline_sms.recipients import NOBODY, Recipient, checked_locale, checked_phone, checked_zone, masked
from paceline_sms.segments import count_segments

LARGEST = 2**31 - 1
"""Of a user id, a limit and a window in minutes: 32 bits, as in every store."""
LONGEST_MESSAGE = 10_000
"""Characters. Far above any SMS, far below any broker's limit."""
LONGEST_KEY = 255
LONGEST_WAIT = timedelta(days=30)
"""Of a message's expiry."""
FARTHEST = timedelta(days=7)
"""How far ahead a message may be scheduled."""
MINUTE_MS = 60_000
_LATEST_MS = 4_102_444_800_000
"""The year 2100. A later time in a record is invalid."""
_KEYED = uuid.UUID("6d0e7d1a-8a0f-4f6e-9d43-3f1d1c6b7a52")
"""The namespace of message ids made from idempotency keys."""


class Priority(StrEnum):
    """Which messages go first when not all can go at once."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Attempt(NamedTuple):
    """One call to send. Build it with `Attempt.of`, which validates."""

    user_id: int
    message: str
    message_id: str
    keyed: bool
    """The id comes from an idempotency key, so it may have been sent before."""
    call_id: str
    """Distinguishes calls with the same key."""
    now_ms: int | None = None
    traceparent: str | None = None
    """The trace its delivery will be part of."""
    to: str | None = None
    """E.164; None: the user's own number."""
    priority: Priority = Priority.NORMAL
    expires_in_ms: int | None = None
    """None: the gateway's default."""
    send_at_ms: int | None = None
    """None: at once."""
    segments: int = 1
    prepaid: bool = False
    """A budget that the store has leased was spent for it: it is counted."""
    fingerprint: str = ""
    """A hash of the content: the same key with another fingerprint is an error."""

    @classmethod
    def of(
        cls,
        user_id: Any,
        message: Any,
        key: str | None = None,
        now_ms: int | None = None,
        *,
        to: Any = None,
        priority: Any = Priority.NORMAL,
        expires_in: Any = None,
        send_at: Any = None,
    ) -> Attempt:
        """Checks every value.

        Raises:
            InvalidInput: A value can't be used; its field is named.
        """
        checked_integer(user_id, "user_id", 0)
        checked_message(message)
        phone = None if to is None else checked_phone(to, "to")
        urgency = checked_priority(priority)
        expires_in_ms = None if expires_in is None else checked_expiry(expires_in)
        call_id = str(uuid.uuid4())
        attempt = cls(
            user_id,
            message,
            call_id,
            False,
            call_id,
            now_ms,
            to=phone,
            priority=urgency,
            expires_in_ms=expires_in_ms,
            send_at_ms=None if send_at is None else to_ms(parse_instant(send_at, "send_at")),
            segments=count_segments(message).number,
        )
        if key is None:
            return attempt
        if not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
            raise InvalidInput("Idempotency-Key", f"must be 1 to {LONGEST_KEY} printable characters")
        content = json.dumps([message, phone, urgency, expires_in_ms, attempt.send_at_ms])
        return attempt._replace(
            message_id=str(uuid.uuid5(_KEYED, f"{user_id}:{key}")),
            keyed=True,
            fingerprint=hashlib.sha256(content.encode()).hexdigest()[:15],
        )

    def check_schedule(self, at_ms: int) -> InvalidInput | None:
        """The error of a time that is too far ahead, or when the message has expired; None if it can be sent then."""
        if self.send_at_ms is None:
            return None
        wait_ms = self.send_at_ms - at_ms
        if wait_ms > FARTHEST / timedelta(milliseconds=1):
            return InvalidInput("send_at", f"must be at most {FARTHEST.days} days ahead")
        if self.expires_in_ms is not None and wait_ms >= self.expires_in_ms:
            return InvalidInput("send_at", "must be before the message expires; choose a longer expires_in")
        return None

    def to_message(self, at_ms: int, default_expiry_ms: int, recipient: Recipient = NOBODY) -> Message:
        """The message this attempt becomes when it is accepted at a time, bound to the user's present recipient. The
        default expiry of a scheduled one begins when it is sent."""
        send_at_ms = self.send_at_ms if self.send_at_ms is not None and self.send_at_ms > at_ms else None
        if self.expires_in_ms is None:
            expires_ms = (at_ms if send_at_ms is None else send_at_ms) + default_expiry_ms
        else:
            expires_ms = at_ms + self.expires_in_ms
        return Message(
            self.user_id,
            self.message,
            self.message_id,
            self.to or recipient.phone,
            self.priority,
            at_ms,
            expires_ms,
            self.segments,
            recipient.locale,
            recipient.zone if self.to in (None, recipient.phone) else None,
            send_at_ms,
        )


class KeyReused(InvalidInput):
    """The same idempotency key was used before, for another message."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        problem = f"was used for another message, {message_id}; take a new key for a new message"
        super().__init__("Idempotency-Key", problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message_id,)


class OptedOut(PacelineError):
    """The recipient wants no messages."""

    def __init__(self, phone: str) -> None:
        self.phone = phone
        super().__init__(f"{masked(phone)} has opted out; nothing was sent or counted")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.phone,)


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
        """The event in a record of the log; `InvalidInput` if there is none."""
        try:
            document = json.loads(value)
            event = cls(document["eventId"], document["userId"], Outcome(document["outcome"]), document["atMs"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput("value", "is not an attempt event") from None
        checked_integer(event.user_id, "userId", 0)
        if not (_is_id(event.event_id) and _is_integer(event.at_ms) and 0 <= event.at_ms <= _LATEST_MS):
            raise InvalidInput("value", "is not an attempt event")
        return event


class Verdict(NamedTuple):
    """The decision on an attempt. A refusal has the time to retry; nothing was counted or published for it."""

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
    is_plain: bool = True
    """A cache may count for this user (`Quota.is_plain`)."""
    segments: int = 1
    unit: str = "message"
    """What `used` counts: message or segment."""


@dataclass(frozen=True, slots=True)
class Message:
    """An accepted message, as the log carries it."""

    user_id: int
    text: str
    message_id: str
    to: str | None = None
    """E.164, bound when it was accepted; None if there was no number then, or another program wrote the record: then it
    is the user's own number, if there is one."""
    priority: Priority = Priority.NORMAL
    accepted_ms: int | None = None
    expires_ms: int | None = None
    """None: it never expires, as a record that another program wrote without a time."""
    segments: int = 1
    locale: str | None = None
    zone: str | None = None
    """Of the recipient, as `to`."""
    send_at_ms: int | None = None
    """None: at once."""

    def to_record_value(self) -> str:
        """The message as the log carries it: JSON, in ASCII so that every store can keep every character."""
        document: dict[str, Any] = {"userId": self.user_id, "message": self.text, "messageId": self.message_id}
        if self.to is not None:
            document["to"] = self.to
        if self.priority is not Priority.NORMAL:
            document["priority"] = self.priority
        if self.accepted_ms is not None:
            document["acceptedAt"] = self.accepted_ms
        if self.expires_ms is not None:
            document["expiresAt"] = self.expires_ms
        if self.send_at_ms is not None:
            document["sendAt"] = self.send_at_ms
        if self.locale is not None:
            document["locale"] = self.locale
        if self.zone is not None:
            document["zone"] = self.zone
        return json.dumps(document)

    @classmethod
    def from_record_value(cls, value: str) -> Message:
        """The message in a record of the log.

        Raises:
            InvalidInput: The record holds no valid message.
        """
        try:
            document = json.loads(value)
        except (ValueError, TypeError, RecursionError):
            document = None
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Message:
        """The message in a record that was read as JSON.

        Raises:
            InvalidInput: It is no valid message.
        """
        try:
            user_id, text, message_id = document["userId"], document["message"], document["messageId"]
            to, priority = document.get("to"), document.get("priority", Priority.NORMAL)
            accepted_ms, expires_ms = document.get("acceptedAt"), document.get("expiresAt")
            locale, zone = document.get("locale"), document.get("zone")
            send_at_ms = document.get("sendAt")
        except (TypeError, KeyError, AttributeError):
            raise InvalidInput("value", "is not a message: an object with userId, message and messageId") from None
        if not _is_id(message_id):
            raise InvalidInput("messageId", "must be a text of 1 to 64 printable characters")
        for field, moment in (("acceptedAt", accepted_ms), ("expiresAt", expires_ms), ("sendAt", send_at_ms)):
            if moment is not None and not (_is_integer(moment) and 0 <= moment <= _LATEST_MS):
                raise InvalidInput(field, "is not a time in milliseconds since 1970")
        return cls(
            checked_integer(user_id, "userId", 0),
            checked_message(text),
            message_id,
            None if to is None else checked_phone(to, "to"),
            checked_priority(priority),
            accepted_ms,
            expires_ms,
            count_segments(text).number,
            None if locale is None else checked_locale(locale),
            None if zone is None else checked_zone(zone),
            send_at_ms,
        )


def checked_integer(value: Any, field: str, least: int) -> int:
    """`value`, which must be a whole number in range, and no boolean."""
    if not _is_integer(value) or not least <= value <= LARGEST:
        raise InvalidInput(field, f"must be a whole number from {least} to {LARGEST}")
    number: int = value
    return number


def checked_message(value: Any) -> str:
    """`value`, which must be a non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput("message", "must be a text that is not blank")
    if len(value) > LONGEST_MESSAGE:
        raise InvalidInput("message", f"must be at most {LONGEST_MESSAGE} characters long")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput("message", "holds half of a surrogate pair, which is no character")
    return value


def checked_priority(value: Any) -> Priority:
    """`value`, which must name a priority."""
    try:
        return Priority(value)
    except ValueError:
        raise InvalidInput("priority", f"must be one of {', '.join(Priority)}") from None


def checked_expiry(value: Any) -> int:
    """Milliseconds of `value`, which must be an ISO 8601 duration."""
    span = parse_duration(value, "expires_in")
    if not timedelta(seconds=1) <= span <= LONGEST_WAIT:
        raise InvalidInput("expires_in", "must be a duration from PT1S to P30D")
    return int(span / timedelta(milliseconds=1))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def storable(text: str, longest: int) -> str:
    """The part of a foreign text that every store can keep: without NUL and lone surrogates."""
    return text.replace("\0", "")[:longest].encode(errors="replace").decode()


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64 and value.isprintable()
