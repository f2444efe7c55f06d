"""What the gateway needs from the outside.

A store (SQL) is authoritative for quotas. A cache (Redis) may decide in its place. A message log (Kafka, or an outbox
in SQL) carries messages from intake to the sender, at least once, in order per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headgate.apps.notifications.analytics import MinuteCount
from headgate.apps.notifications.model import Attempt, AttemptEvent, Message, Quota, Spending, Verdict
from headgate.errors import HeadgateError
from headgate.messaging import MessageLog

# -- quotas ------------------------------------------------------------------------------------------------------


class QuotaStore(Protocol):
    """Quotas in a database. `now_ms` is the database's clock unless given."""

    async def configure(
        self, user_id: int, rate_limit: int, window_minutes: int, *, now_ms: int | None = None
    ) -> Quota:
        """Creates or replaces the user's quota: nothing counted, window beginning now, next version."""
        ...

    async def admit(self, attempts: Sequence[Attempt], log: MessageLog) -> Sequence[Verdict | HeadgateError]:
        """One outcome each, in one transaction that locks the users' rows: decides, publishes to `log` what is
        allowed, counts what the log acknowledged. What it did not acknowledge leaves no trace.

        If `log` lies in the same database, message and count are committed together. Unknown users are `NotFound`.
        """
        ...

    async def find(self, user_id: int, *, now_ms: int | None = None) -> tuple[Quota, int] | None:
        """The user's quota in its current window, and the time. Takes no lock unless the window must be renewed."""
        ...

    async def sync(self, spendings: Sequence[Spending], sent_ids: Sequence[str]) -> set[int]:
        """Counts what a cache admitted (`model.merge_spending`) and remembers the message ids that were sent under an
        idempotency key, in one transaction. Returns the users whose copies in the cache are no longer valid."""
        ...

    async def was_sent(self, message_id: str, *, now_ms: int | None = None) -> bool:
        """Whether a message of this id, made from an idempotency key, is remembered as sent."""
        ...


class Hit(NamedTuple):
    """The cache decided. `spending` is what the store does not have yet, if anything was counted."""

    verdict: Verdict
    spending: Spending | None


class Miss(NamedTuple):
    """The cache knows nothing valid of this user."""


class Busy(NamedTuple):
    """The same idempotency key is being published by somebody else right now."""


class QuotaCache(Protocol):
    """Quotas in a cache that decides atomically, by its own clock unless `now_ms` is given. Every call may raise
    `StoreUnavailable`; whether it took effect is then unknown."""

    @property
    def incarnation(self) -> int:
        """Grows whenever the server behind may be another, or may have lost something."""
        ...

    async def spend(self, attempt: Attempt) -> Hit | Miss | Busy:
        """Checks and counts in one step. An attempt under an idempotency key that was counted before is not counted
        again: it is a replay if it was `settled` as sent, else it may be published again."""
        ...

    async def settle(self, attempt: Attempt, *, sent: bool) -> None:
        """Notes whether a keyed attempt that was counted has been published."""
        ...

    async def learn(self, quota: Quota, left_ms: int, *, now_ms: int | None = None) -> None:
        """Takes over the store's row, whose window ends in `left_ms`, unless a newer one is known; never lowers a
        count within a window."""
        ...

    async def forget(self, quota: Quota) -> None:
        """Drops the user's copy, and refuses copies of versions before this one from now on."""
        ...

    async def close(self) -> None: ...


# -- the sender --------------------------------------------------------------------------------------------------


class SendFailed(HeadgateError):
    """The provider did not take the message. Another try may succeed unless `permanent`."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        self.permanent = permanent
        super().__init__(reason)


class Sender(Protocol):
    """Hands messages to whoever brings them to the phone."""

    async def send(self, message: Message) -> None:
        """Returns when the provider has taken the message. After a crash it may be called again with the same message
        id, which it passes on, so that the provider can deduplicate.

        Raises:
            SendFailed: The provider did not take it.
        """
        ...

    async def close(self) -> None: ...


class DeliveryStore(Protocol):
    """Which message ids have been dealt with."""

    async def settled(self, message_ids: Sequence[str]) -> set[str]:
        """Those that were sent or dead-lettered."""
        ...

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        """Remembers; again is fine."""
        ...

    async def prune(self, before_ms: int) -> int:
        """Forgets the old ones."""
        ...


class DeliveryOutcome(NamedTuple):
    """What became of a message at the sender."""

    message_id: str
    user_id: int
    sent: bool
    """False: dead-lettered."""
    attempts: int


# -- analytics and watching --------------------------------------------------------------------------------------


class AnalyticsStore(Protocol):
    """Attempts, counted."""

    async def add(self, events: Sequence[AttemptEvent]) -> None:
        """Takes the events in; one it has already is ignored."""
        ...

    async def counts(self, since_ms: int, until_ms: int, user_id: int | None = None) -> list[MinuteCount]:
        """Attempts by user, minute and outcome, in order of the minutes."""
        ...

    async def now_ms(self) -> int:
        """The store's clock."""
        ...

    async def prune(self, before_ms: int) -> int: ...


class NotificationObserver(Protocol):
    """Observes what happens, for metrics. Must be quick and must not raise."""

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        """A send was answered, on the path `sql` or `redis`."""
        ...

    def fell_back(self) -> None:
        """Redis did not answer; the SQL path decided."""
        ...

    def synced(self, users: int, failed: bool) -> None:
        """Counts were written to the store, or could not be."""
        ...

    def events_dropped(self, count: int) -> None:
        """Attempt events were lost because their queue was full."""
        ...

    def delivered(self, outcome: str) -> None:
        """The sender dealt with a message: `sent`, `duplicate`, `retried` or `dead_lettered`."""
        ...


class NullObserver:
    """An observer that does nothing."""

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        pass

    def fell_back(self) -> None:
        pass

    def synced(self, users: int, failed: bool) -> None:
        pass

    def events_dropped(self, count: int) -> None:
        pass

    def delivered(self, outcome: str) -> None:
        pass
