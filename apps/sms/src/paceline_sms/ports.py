"""The ports of the gateway.

A store (SQL) is authoritative for quotas. A cache (Redis) may decide in its place. A message log (Kafka, or an outbox
in SQL) carries messages from intake to the sender, at least once, in order per key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from paceline.durations import EPOCH
from paceline.errors import PacelineError
from paceline_sms.analytics import MinuteCount
from paceline_sms.model import Attempt, AttemptEvent, Message, Verdict
from paceline_sms.quota import Quota
from paceline_sms.recipients import Recipient

LARGEST_COPY = 500_000
"""Bytes of a dead letter on its topic."""

# -- quotas ------------------------------------------------------------------------------------------------------


class QuotaStore(Protocol):
    """Quotas in a database. `now_ms` is the database's clock unless given."""

    async def configure(
        self,
        user_id: int,
        rate_limit: int,
        window_minutes: int,
        changes: Mapping[str, Any] | None = None,
        *,
        now_ms: int | None = None,
    ) -> Quota:
        """Creates the user's quota, or changes it: nothing counted, window beginning now, next version. `changes` are
        by name: algorithm, unit, phone, locale, zone; others keep their values.

        Raises:
            InvalidInput: Its algorithm can't keep such numbers; nothing is changed.
        """
        ...

    async def delete(self, user_id: int) -> bool:
        """Removes the user's quota; whether there was one."""
        ...

    async def admit(self, attempts: Sequence[Attempt]) -> Sequence[Verdict | PacelineError]:
        """One outcome each, in one transaction that locks the users' rows: decides, counts what is allowed, and queues
        it; with Kafka, by way of the outbox. Unknown users are `NotFound`; a key used for another message is
        `KeyReused`; a recipient who has opted out is `OptedOut`."""
        ...

    async def publish(self, messages: Sequence[tuple[Attempt, Message]]) -> None:
        """Queues messages that a cache admitted; with Kafka, by way of the outbox."""
        ...

    async def find(self, user_id: int, *, renew: bool = True, now_ms: int | None = None) -> tuple[Quota, int] | None:
        """The user's quota, and the time. With `renew` an elapsed window is restarted, which takes a lock."""
        ...

    async def lease(self, requests: Sequence[LeaseRequest]) -> Sequence[Lease | None]:
        """Counts a budget for a cache to spend, as far as the limit allows, in one transaction that locks the users'
        rows. None where the user has no quota."""
        ...

    async def opted_out(self, phones: Sequence[str]) -> Collection[str]:
        """Those of the numbers that have opted out."""
        ...

    async def accepted(self, messages: Sequence[Message]) -> None:
        """Writes rows for messages that a cache admitted and that are published, if they have none yet."""
        ...

    @property
    def hears_configurations(self) -> bool:
        """Whether a change by any process is announced to this one at once."""
        ...

    async def follow_configurations(self, changed: Callable[[], None]) -> None:
        """Calls `changed` after each announcement, and whenever one may have been missed, until it is cancelled."""
        ...


class LeaseRequest(NamedTuple):
    """A wish for a budget."""

    user_id: int
    callers: int
    """How many wait for it: each needs one."""
    now_ms: int | None = None


class Lease(NamedTuple):
    """A budget, which the store has counted."""

    quota: Quota
    """After it."""
    budget: int
    """0 if the limit is reached."""
    at_ms: int
    lease_id: str
    """A grant that is repeated, because its answer was lost, adds the budget once."""


class QuotaCache(Protocol):
    """Spends budgets, atomically, by its own clock unless `now_ms` is given. Every call may raise `StoreUnavailable`;
    whether it took effect is then unknown. Budgets that the server got before it was restarted or replaced are void: it
    may have lost that they were spent."""

    async def spend(self, attempt: Attempt, quota: Quota) -> Verdict | None:
        """Takes one from the user's budget of the quota's version, of its window or a later one. None if there is no
        budget; a refusal if the store had nothing left to lease either."""
        ...

    async def grant(self, lease: Lease, *, now_ms: int | None = None) -> None:
        """Adds a leased budget, unless a later version or window is known."""
        ...

    async def refund(self, attempt: Attempt) -> None:
        """Gives back what the attempt has spent, if it has."""
        ...

    async def forget(self, quota: Quota) -> None:
        """Deletes the user's copy, and rejects copies of earlier versions from now on."""
        ...

    async def close(self) -> None: ...


# -- the sender --------------------------------------------------------------------------------------------------


class Status(StrEnum):
    """The status of a message."""

    QUEUED = "QUEUED"
    """It waits, or is being sent; it may have failed attempts."""
    SENT = "SENT"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    """By its caller, before a sender took it."""
    UNKNOWN = "UNKNOWN"
    """Nobody knows whether a provider took it. A receipt resolves it."""


class FactsRequest(NamedTuple):
    """A message that is about to be sent."""

    message: Message
    item_type: str
    is_first: bool = True
    """Whether this is its first attempt."""


class Facts(NamedTuple):
    """What a sender has to know of a message, right before it is sent."""

    status: Status
    now_ms: int
    """By the store's clock."""
    expires_ms: int | None
    recipient: Recipient
    """The user's own, for a message that is bound to none."""
    opted_out: bool = False
    unknown_provider: str | None = None
    """The provider that may have taken it at an earlier attempt; `ANY` if that is not known."""


ANY = "?"
"""Some provider: the sender's process ended while a call was on the wire."""


class DeliveryOutcome(NamedTuple):
    """The result of a message at the sender."""

    message_id: str
    status: Status
    attempts: int
    provider: str | None = None
    provider_id: str | None = None
    segments: int | None = None
    reason: str | None = None
    price: str | None = None
    currency: str | None = None


class DeadLetter(NamedTuple):
    """A record that will not be sent, unless an operator redrives it."""

    letter_id: str
    message_id: str | None
    """None if the record could not be read."""
    key: str
    value: str
    reason: str
    attempts: int
    dead_ms: int = 0
    whole: bool = True
    """False: it was too long to keep; only its beginning is here, and it can't be redriven."""
    dead_at: datetime = EPOCH
    """As `dead_ms`, but exact: its place in a list."""

    def to_record_value(self) -> str:
        """The dead letter as its topic carries it: cut, with a hash of the whole, if it is larger than a broker takes
        by default."""
        document = {"value": self.value, "reason": self.reason, "attempts": self.attempts}
        text = json.dumps(document)
        if len(text) <= LARGEST_COPY:
            return text
        digest = hashlib.sha256(self.value.encode(errors="surrogatepass")).hexdigest()
        return json.dumps({**document, "value": self.value[: LARGEST_COPY // 12], "sha256": digest})


class Receipt(NamedTuple):
    """A provider's delivery report on a message that it accepted."""

    provider: str
    delivered: bool | None
    """None: it was taken, and nothing is known of its delivery yet."""
    message_id: str | None = None
    """Our id, if the provider returns it; else `provider_id` names the message."""
    provider_id: str | None = None
    reason: str = ""


class MessageStatus(NamedTuple):
    """A message's status, with its times."""

    message_id: str
    user_id: int
    status: Status
    segments: int
    attempts: int
    accepted_at: datetime
    expires_at: datetime | None
    sent_at: datetime | None
    delivered_at: datetime | None
    failed_at: datetime | None
    provider: str | None
    provider_id: str | None
    reason: str | None
    price: str | None = None
    currency: str | None = None
    cancelled_at: datetime | None = None
    send_at: datetime | None = None
    """None: it was sent as soon as it could be."""


class Cancellation(NamedTuple):
    """The result of cancelling a message."""

    message: MessageStatus
    """After it."""
    refusal: str | None = None
    """Why it could not be cancelled."""


class Backlog(NamedTuple):
    """What has no outcome yet."""

    waiting: int = 0
    oldest_seconds: float = 0.0
    """The age of the oldest that waits."""
    dead_letters: int = 0
    unknown: int = 0
    """Messages with an unknown outcome."""
    lost: int = 0
    """Messages that were in no place, and were queued again by the sweep of this process."""


class MessageFilter(NamedTuple):
    """Which messages to list; None: any."""

    status: Status | None = None
    user_id: int | None = None
    prefix: str | None = None
    """What their ids begin with."""

    @property
    def statuses(self) -> list[Status]:
        """Every status that is selected."""
        return list(Status) if self.status is None else [self.status]


class OptOutEntry(NamedTuple):
    """A number that has opted out."""

    phone: str
    """Words that name the key, if this process lacks it."""
    reason: str
    created_at: datetime
    place: int
    """In the list of all."""


class TakenIn(NamedTuple):
    """What became of records of the log."""

    duplicates: int
    """Messages that were queued before."""
    letters: list[DeadLetter]
    """Records that could not be read."""


class DeliveryStore(Protocol):
    """What an execution asks and stores."""

    async def facts(self, requests: Sequence[FactsRequest]) -> Sequence[Facts]:
        """What is known of messages now, in order."""
        ...

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> Collection[str]:
        """Stores the outcomes of messages that have none yet, and returns the ids of those. One that a receipt has
        reported as delivered stays so."""
        ...

    def settle_within(self, within: Any, outcomes: Sequence[DeliveryOutcome]) -> object:
        """The same in the transaction that completes the messages' items: `CurrentTask.complete_with` calls it."""
        ...

    async def note(self, message_id: str, attempts: int, unknown_provider: str | None) -> None:
        """Stores that a message had so many attempts, and which provider may have taken it."""
        ...

    async def opt_out(self, phone: str, reason: str) -> None:
        """Stores the opt-out of a number."""
        ...


# -- analytics and watching --------------------------------------------------------------------------------------


class AnalyticsStore(Protocol):
    """Attempts, counted."""

    async def add(self, events: Sequence[AttemptEvent]) -> None:
        """Stores the events. Idempotent by event id."""
        ...

    async def counts(self, since_ms: int, until_ms: int, users: Sequence[int]) -> list[MinuteCount]:
        """Attempts of some users, by user, minute and outcome, in order of the minutes."""
        ...

    async def totals(self, since_ms: int, until_ms: int) -> tuple[list[MinuteCount], int]:
        """Attempts of all users together, by minute and outcome; and how many users they are of."""
        ...

    async def busiest(self, since_ms: int, until_ms: int, limit: int) -> list[int]:
        """The users with the most attempts, the most first."""
        ...

    async def suspects(self, since_ms: int, until_ms: int) -> list[int]:
        """Users that may be anomalies: with many attempts, or with a limited one."""
        ...

    async def now_ms(self) -> int:
        """The store's clock."""
        ...

    async def prune(self, before_ms: int) -> int: ...


class NotificationObserver(Protocol):
    """Observes what happens, for metrics. Must be quick and must not raise."""

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        """A send was decided, on the path `sql` or `redis`."""
        ...

    def fell_back(self) -> None:
        """Redis did not answer; the SQL path decided."""
        ...

    def events_dropped(self, count: int) -> None:
        """Attempt events were lost because their queue was full."""
        ...

    def events_indexed(self, indexed: int, refused: int, expired: int) -> None:
        """How many events the search index accepted, refused, or got too late."""
        ...

    def events_retried(self, count: int) -> None:
        """The search index did not answer, or is blocked: these events are brought to it again."""
        ...

    def delivered(self, outcome: str) -> None:
        """The sender processed a message: `sent`, `duplicate`, `retried`, `unknown`, `opted_out` or
        `dead_lettered`."""
        ...

    def provider_called(self, provider: str, result: str, seconds: float) -> None:
        """A provider answered `accepted` or `rejected`, the outcome is `unknown`, or it was `unavailable`."""
        ...

    def reader_restarted(self, reader: str) -> None:
        """A reader of the message log failed and was restarted."""
        ...

    def lost(self, messages: int) -> None:
        """Accepted messages were in no place, and are queued again."""
        ...

    def receipt(self, provider: str, delivered: bool | None, seconds: float) -> None:
        """A provider reported on a message, `seconds` after it was sent."""
        ...

    def backlog(self, backlog: Backlog, available: bool) -> None:
        """What has no outcome yet, and whether a provider is available."""
        ...


class NullObserver:
    """An observer that does nothing."""

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        pass

    def fell_back(self) -> None:
        pass

    def events_dropped(self, count: int) -> None:
        pass

    def events_indexed(self, indexed: int, refused: int, expired: int) -> None:
        pass

    def events_retried(self, count: int) -> None:
        pass

    def delivered(self, outcome: str) -> None:
        pass

    def provider_called(self, provider: str, result: str, seconds: float) -> None:
        pass

    def reader_restarted(self, reader: str) -> None:
        pass

    def lost(self, messages: int) -> None:
        pass

    def receipt(self, provider: str, delivered: bool | None, seconds: float) -> None:
        pass

    def backlog(self, backlog: Backlog, available: bool) -> None:
        pass
