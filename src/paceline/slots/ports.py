"""The ports of slots: a store and an observer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar

from paceline.errors import PacelineError
from paceline.slots.booking.packer import Side
from paceline.slots.booking.packing import Booking
from paceline.slots.forecast.impact import WindowGroup
from paceline.slots.listing import NO_CAUSE, Cancellation, Cursor, ListedConfig, ListedSlot, SlotFilter, SlotHistory
from paceline.slots.model import AssignedSlot, BookingGroup, PolicyVersion, SlotRequest, WindowPolicy
from paceline.slots.occupancy import Occupancy

T = TypeVar("T")


class PruneResult(NamedTuple):
    """What retention removed."""

    slots: int
    windows: int


class LockHolder(NamedTuple):
    """A database session that holds a config's lock."""

    process: int
    """Its process on the database's server."""
    application: str
    query_seconds: float
    """The age of its last query."""
    held_seconds: float
    """The age of its transaction."""

    def __str__(self) -> str:
        application, age = self.application or "unnamed", self.query_seconds
        return f"process {self.process} ({application}), whose last query began {age:.1f} s ago"


class SlotStore(Protocol):
    """Keeps policies, slots and window counters.

    Time is the store's own clock unless `now_ms` is given. Every method is one atomic transaction, and a result that
    was returned survives a crash.
    """

    async def configure(
        self, name: str, policy: WindowPolicy, *, now_ms: int | None = None, replacing: int | None = None
    ) -> PolicyVersion:
        """Makes `policy` the active version of `name`, recounting windows from the present one on if their size
        changed. If slots of the present window were pruned, it is full. Returns that version.

        Raises:
            Conflict: `replacing` is given and is not the active version (0: no version yet); nothing was changed.
        """
        ...

    async def make_from_template(self, name: str, max_configs: int) -> PolicyVersion | None:
        """The config of this name, made from the template that matches it best, such as `merchant-*`; None if none
        does. It follows its template until it is configured by its own name.

        Raises:
            InvalidInput: `max_configs` configs follow that template, and none of them is idle; nothing was made.
        """
        ...

    async def active_version(self, name: str) -> int | None:
        """The number of the active version; None if there is no such config."""
        ...

    async def history(self, name: str) -> list[PolicyVersion]:
        """Every version of `name`, newest first; empty if there is none."""
        ...

    async def configs(self, *, following: bool = False) -> list[PolicyVersion]:
        """The active version of every config, by name; or of those that follow a downstream."""
        ...

    async def search_configs(
        self, search: str, template: str | None, after: str | None, limit: int
    ) -> list[ListedConfig]:
        """The configs whose names hold a text, past the name `after`, by name; with `template`, those that follow it,
        and with the empty text those that follow none."""
        ...

    async def book(
        self,
        names: str | Sequence[str],
        requests: Sequence[SlotRequest],
        *,
        now_ms: int | None = None,
        owner: str | None = None,
    ) -> list[Booking]:
        """`book_groups` of one group, whose configs must be there."""
        ...

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> list[list[Booking]]:
        """Books a slot for each request, in order, exactly packed; one that has a slot keeps it. Under several names a
        slot is charged in a window of each, or in none. A config that is not there is made from its template, which may
        have up to `template_configs` configs; with 0, none is made.

        Serialised per name.

        Raises:
            Conflict: another writer was booking the same event; nothing was booked; retry.
            LockTimeout: the lock of one of the configs did not become free in time; nothing was booked.
        """
        ...

    async def slot_history(
        self, name: str, last: timedelta, horizon: timedelta, *, now: datetime | None = None
    ) -> SlotHistory:
        """The slots of a config in this `last` time and within the `horizon`, per second."""
        ...

    async def lock_holders(self, names: Sequence[str]) -> dict[str, LockHolder]:
        """The sessions that hold the locks of these configs now, as far as the store knows them."""
        ...

    def series_of(self, name: str) -> str | None:
        """The name under which a config is counted: that of the template which it follows, or its own. None if nothing
        was booked under it in this process."""
        ...

    async def find(self, event_id: str) -> AssignedSlot | None:
        """The event's slot."""
        ...

    async def cancel(
        self, event_id: str, *, owner: str | None = None, cause: Cancellation = NO_CAUSE
    ) -> AssignedSlot | None:
        """Removes the event's slot, cancels the work that carries it, and frees its room; None if it has none. Its
        record stays, with the cause.

        Raises:
            Conflict: the slot was moved concurrently; nothing was changed; retry.
            SlotInUse: the work has begun; nothing was changed.
            SlotOwned: the slot is not `owner`'s; nothing was changed.
        """
        ...

    async def booked(self, before_ms: int, after: tuple[int, str] | None, limit: int) -> list[AssignedSlot]:
        """Slots scheduled before a time, oldest first, past the (scheduled, event) cursor: pages for reconciliation."""
        ...

    async def page(
        self, selection: SlotFilter, after: Cursor | None, limit: int, *, latest_first: bool = False
    ) -> list[ListedSlot]:
        """The first `limit` records of booked and cancelled slots behind a cursor, by scheduled time."""
        ...

    async def count(self, selection: SlotFilter) -> int:
        """How many records match, up to `MOST_COUNTED`."""
        ...

    async def beginning(self, prefix: str, limit: int) -> list[ListedSlot]:
        """The first `limit` booked slots whose events' ids begin so, in order of the ids."""
        ...

    async def record(self, event_id: str) -> ListedSlot | None:
        """The record of the event's slot; None if it has none, or it was cancelled."""
        ...

    async def count_beyond(self, name: str, max_delay_ms: int) -> int:
        """How many future slots have a delay above `max_delay_ms`, counted from the later of request and booking; of a
        template, slots under any of the configs that follow it."""
        ...

    async def survey(self, name: str, look: Callable[[PolicyVersion, Occupancy, int], T]) -> T:
        """What `look(active policy, view of the windows, now in ms)` makes of the state; nothing is written. A config
        that is not there yet has the policy of its template.

        Raises:
            NotFound: there is no such config and no template for it.
        """
        ...

    async def survey_joint(self, names: Sequence[str], look: Callable[[Sequence[Side], int], T]) -> T:
        """As `survey`, of several configs at one moment."""
        ...

    async def survey_followers(
        self, template: str, size_ms: int, look: Callable[[PolicyVersion, Iterable[WindowGroup]], T]
    ) -> list[T]:
        """What `look(policy, windows)` makes of the configs that follow a template, from the present window on, counted
        in windows of this size; nothing is written. One result for each version of the template that they have: more
        than one only while they change."""
        ...

    async def prune(self, before_ms: int) -> PruneResult:
        """Deletes windows that ended before a time, and the slots in them, in batches; the records of slots that were
        cancelled before it, and of moves that were not read yet; and configs made from a template that have no windows
        left."""
        ...

    async def close(self) -> None:
        """Closes the store's connections."""
        ...


class SlotObserver(Protocol):
    """Observes the scheduler, for metrics. Called on the event loop: must be quick and must not raise."""

    def booked(self, name: str, bookings: Sequence[Booking], seconds: float) -> None:
        """A batch was booked in one transaction."""
        return

    def assigned(self, name: str, seconds: float) -> None:
        """One call returned, after `seconds` of waiting and booking."""
        return

    def failed(self, name: str, requests: int, error: PacelineError) -> None:
        """A transaction failed: its requests were not booked, or the outcome is unknown."""
        return

    def contended(self, name: str) -> None:
        """A batch was retried because of a concurrent writer."""
        return

    def policy_looked_up(self, name: str, *, cached: bool) -> None:
        """The active policy was read, from memory or from the store."""
        return


class NullObserver(SlotObserver):
    """Observes nothing."""
