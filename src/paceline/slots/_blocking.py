# Generated from slots/scheduler.py by scripts/generate_blocking.py. Do not edit.
"""`BlockingSlotScheduler`: the same calls for threads, without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from paceline.background import listed
from paceline.slots.background_scheduler import BackgroundScheduler
from paceline.slots.booking.packing import Booking
from paceline.slots.config_names import ConfigNames
from paceline.slots.explain import Explanation
from paceline.slots.forecast.forecast import Forecast
from paceline.slots.forecast.heat_map import HeatMap
from paceline.slots.forecast.impact import ChangeWarning
from paceline.slots.inspection import Started
from paceline.slots.listing import (
    EVERYTHING,
    ListedConfig,
    ListedSlot,
    SlotFilter,
    SlotHistory,
)
from paceline.slots.model import (
    AssignedSlot,
    BookingGroup,
    PolicyVersion,
    SlotRequest,
    WindowPolicy,
)
from paceline.slots.ports import PruneResult
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Replan
from paceline.slots.scheduler import EventTime

P = ParamSpec("P")
T = TypeVar("T")


class BlockingSlotScheduler(BackgroundScheduler):
    """A `SlotScheduler` whose calls block until they are done.

        with BlockingSlotScheduler("sqlite:///slots.db") as slots:
            slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
            slot = slots.assign("order-123", "default", "2027-03-01T16:00:00Z")

    Any number of threads may call it. Their calls share transactions. A forked process opens its own connections.
    """

    def configure(self, name: str, policy: WindowPolicy, *, now: datetime | None = None) -> PolicyVersion:
        """Makes `policy` the active version of `name`. Effective from the next call on any node.

        Raises:
            ConfigurationError: the policy's calendar never opens.
            InvalidInput: the name is no config's name.
        """
        return self._run(lambda scheduler: scheduler.configure(name, policy, now=now))

    def ensure(self, name: str, policy: WindowPolicy) -> PolicyVersion:
        """The active version of `name`; if there is none, `policy` becomes its first one.

        Raises:
            ConfigurationError: the policy's calendar never opens.
        """
        return self._run(lambda scheduler: scheduler.ensure(name, policy))

    def change(
        self, name: str, changes: Mapping[str, Any], *, if_version: Collection[int] | None = None
    ) -> PolicyVersion:
        """Makes a new version of `name` that differs from the active one in the given fields of `WindowPolicy` only;
        None removes a `calendar`, a `max_delay`, a `spread`, a `first_window` or a `follow`. A new name needs
        `max_per_window` and `window`, unless it has a template, whose values are the defaults. Concurrent changes of
        different fields are both kept; with `if_version`, the change is made only if one of these versions is active
        (0: no version yet).

        Raises:
            InvalidInput: a value is wrong, or a new config lacks one.
            StaleVersion: another version than those of `if_version` is active; nothing was changed.
        """
        return self._run(lambda scheduler: scheduler.change(name, changes, if_version=if_version))

    def policy(self, name: str) -> PolicyVersion:
        """The active policy, for display; of a config that is not made yet, its template's. Each look-up reads the
        number of the active version and loads the policy if that changed, so every process shows a change at once.
        While the store is unavailable, a policy that was confirmed less than `cache_ttl` seconds ago is returned.

        Raises:
            NotFound: there is no such config.
            StoreUnavailable: the store does not answer, and no recent policy is known.
        """
        return self._run(lambda scheduler: scheduler.policy(name))

    def check_configs(self, names: ConfigNames) -> None:
        """Raises an error unless slots can be booked under these configs: each is there, or has a template.

        Raises:
            InvalidInput: a name is wrong, or is a template's.
            NotFound: there is no such config.
        """
        return self._run(lambda scheduler: scheduler.check_configs(names))

    def history(self, name: str) -> list[PolicyVersion]:
        """Every version of `name`, newest first; of a config that is not made yet, its template's active one.

        Raises:
            NotFound: there is no such config, and no template for it.
        """
        return self._run(lambda scheduler: scheduler.history(name))

    def configs(self, *, following: bool = False) -> list[PolicyVersion]:
        """The active version of every config, by name; with `following`, of those that follow a downstream."""
        return self._run(lambda scheduler: scheduler.configs(following=following))

    def search_configs(
        self, search: str = "", *, template: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[ListedConfig]:
        """A page of the configs whose names hold a text, whatever its case, by name. With `template`, only those that
        follow it; the empty text selects those that follow none. `after` is the last name of the page before.

        Raises:
            InvalidInput: the limit is not from 1 to 1000.
        """
        return self._run(
            lambda scheduler: scheduler.search_configs(search, template=template, after=after, limit=limit)
        )

    def assign(
        self,
        event_id: str,
        config_name: str | Sequence[str] = (),
        requested_time: datetime | str = "",
        *,
        config_names: Sequence[str] = (),
    ) -> AssignedSlot:
        """The event's slot: the one it has, or else the earliest free one at or after `requested_time` and now.

        Under several configs, up to 8, the slot lies in one open window with room of each, and is charged in all of
        them or in none: `slots.assign("order-1", ["bank", "merchant-7"], at)`.

        Raises:
            InvalidInput: the id, a name or the time is wrong.
            NotFound: there is no such config.
            SlotsExhausted: nothing is free within the `max_delay` of every policy.
            StoreUnavailable: the store does not answer; the slot may have been booked.
        """
        return self._run(
            lambda scheduler: scheduler.assign(event_id, config_name, requested_time, config_names=config_names)
        )

    def assign_many(
        self,
        events: Iterable[EventTime] | Sequence[SlotRequest],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
        owner: str | None = None,
    ) -> list[AssignedSlot]:
        """A slot for each event, in order, under one config or several; new ones belong to `owner`. All are checked
        before any is booked; the first that can't have a slot raises its error, after the others are booked.

        Raises:
            InvalidInput: an event is wrong; nothing was booked.
            NotFound: there is no such config.
            SlotsExhausted: nothing is free within the policy's `max_delay`.
        """
        events = listed(events)
        return self._run(
            lambda scheduler: scheduler.assign_many(events, config_name, config_names=config_names, owner=owner)
        )

    def book(
        self, requests: Sequence[SlotRequest], config_name: str | Sequence[str], *, owner: str | None = None
    ) -> list[Booking]:
        """The outcome of each request, in order: its slot or its error. Large lists take several transactions, each
        short enough that other callers wait less than a second for it. New slots belong to `owner`, the only
        application that may cancel them; without an owner, any caller may.

        Raises:
            StoreUnavailable: the store does not answer; slots of earlier transactions stay booked.
        """
        return self._run(lambda scheduler: scheduler.book(requests, config_name, owner=owner))

    def book_groups(self, groups: Sequence[BookingGroup]) -> list[list[Booking]]:
        """As `book`, for requests under any number of sets of configs: the outcomes of each group, in order. Groups
        share transactions, so a thousand lines with a thousand configs take a few.

        Raises:
            InvalidInput: a name is wrong, or is a template's.
            StoreUnavailable: the store does not answer; slots of earlier transactions stay booked.
        """
        return self._run(lambda scheduler: scheduler.book_groups(groups))

    def find(self, event_id: str) -> AssignedSlot:
        """The event's slot.

        Raises:
            NotFound: the event has no slot.
        """
        return self._run(lambda scheduler: scheduler.find(event_id))

    def cancel(
        self, event_id: str, *, owner: str | None = None, reason: str | None = None, actor: str | None = None
    ) -> AssignedSlot:
        """Cancels the event's slot; its room is free from the next call on. The queue item of the slot is cancelled
        with it. A record of the slot stays until it is pruned, with the reason and the actor who cancelled it.

        Raises:
            InvalidInput: the reason is no text, or longer than 500 characters.
            NotFound: the event has no slot.
            SlotInUse: its work has begun: cancel that instead, which frees the slot.
            SlotOwned: the slot belongs to another than `owner`.
        """
        return self._run(lambda scheduler: scheduler.cancel(event_id, owner=owner, reason=reason, actor=actor))

    def replan(
        self,
        config_name: str,
        *,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        notice: timedelta | str | None = None,
        direction: str | Direction = Direction.EARLIER,
        dry_run: bool = False,
        max_per_window: int | None = None,
    ) -> Replan:
        """Moves booked slots to earlier free places, in order; or, with `direction="spread"`, what is over the limit to
        later ones. `since` and `until` bound the slots that are moved. A slot that is booked under several configs
        moves to where all of them have room, and is charged there. No slot within `notice` (one minute) of now moves,
        nor one whose work has begun. Bookings continue meanwhile. It is idempotent: a call that failed may be repeated.
        With `dry_run` nothing moves, and `max_per_window` says what would if that were the limit.

        Raises:
            ConfigurationError: the scheduler was made without a store for it.
            InvalidInput: a value is wrong.
            NotFound: there is no such config.
        """
        return self._run(
            lambda scheduler: scheduler.replan(
                config_name,
                since=since,
                until=until,
                notice=notice,
                direction=direction,
                dry_run=dry_run,
                max_per_window=max_per_window,
            )
        )

    def reconcile(
        self,
        started: Started,
        *,
        before: datetime,
        redispatch: Callable[[AssignedSlot], Awaitable[None]] | None = None,
        owner: str | None = None,
        page: int = 1000,
    ) -> list[AssignedSlot]:
        """Finds slots scheduled before a time whose work never started (a crash between booking and starting).

        `started` returns, page by page, which events are known to have work. The others are passed to `redispatch`, or,
        without one, cancelled so that their room is free again. Returns them. Slots of other owners are left alone.
        """
        return self._run(
            lambda scheduler: scheduler.reconcile(started, before=before, redispatch=redispatch, owner=owner, page=page)
        )

    def free_unstarted(
        self, started: Started, *, before: datetime, reason: str | None = None, actor: str | None = None
    ) -> list[AssignedSlot]:
        """Cancels slots of any owner that were scheduled before a time and whose work never started, for an operator.
        Returns the slots that it cancelled.
        """
        return self._run(lambda scheduler: scheduler.free_unstarted(started, before=before, reason=reason, actor=actor))

    def prune(self, before: datetime) -> PruneResult:
        """Deletes slots and windows that lie before a time. A slot whose work is still pending stays, however late it
        is. An event whose slot was deleted gets a new one if it is booked again. If a config gets longer windows later,
        and slots of its new current window were deleted, that window counts as full.

        Raises:
            InvalidInput: the time lies in the future.
        """
        return self._run(lambda scheduler: scheduler.prune(before))

    def page(
        self,
        selection: SlotFilter = EVERYTHING,
        *,
        limit: int = 100,
        cursor: str | None = None,
        sort: str | None = None,
    ) -> tuple[list[ListedSlot], str | None]:
        """A page of booked and cancelled slots by scheduled time, and the cursor of the next page; None if this is the
        last. With `sort="-scheduledTime"`, the latest first.

        Raises:
            InvalidInput: the limit is not from 1 to 1000, or the cursor or the order is none.
        """
        return self._run(lambda scheduler: scheduler.page(selection, limit=limit, cursor=cursor, sort=sort))

    def count(self, selection: SlotFilter = EVERYTHING) -> int:
        """How many booked and cancelled slots match; 100,001 if there are more than 100,000."""
        return self._run(lambda scheduler: scheduler.count(selection))

    def per_second(self, name: str, *, last: timedelta, ahead: timedelta) -> SlotHistory:
        """The slots of a config per second: in this `last` time as events wanted them and as they were, and those that
        are booked for the time `ahead`.

        Raises:
            InvalidInput: the name is wrong.
        """
        return self._run(lambda scheduler: scheduler.per_second(name, last=last, ahead=ahead))

    def beginning(self, prefix: str, *, limit: int = 10) -> list[ListedSlot]:
        """The first booked slots whose events' ids begin with `prefix`, in order of the ids.

        Raises:
            InvalidInput: the prefix is no part of an id, or the limit is not from 1 to 1000.
        """
        return self._run(lambda scheduler: scheduler.beginning(prefix, limit=limit))

    def explain(self, event_id: str) -> Explanation:
        """Why the event got its time: the windows that were passed over, and what would happen today.

        Raises:
            NotFound: the event has no slot.
        """
        return self._run(lambda scheduler: scheduler.explain(event_id))

    def unstarted(self, started: Started, *, before: datetime) -> list[AssignedSlot]:
        """Slots of any owner that were scheduled before a time and whose work never started. `started` returns, page by
        page, which events are known to have work.
        """
        return self._run(lambda scheduler: scheduler.unstarted(started, before=before))

    def preview(
        self, name: str, changes: Mapping[str, Any], *, if_version: Collection[int] | None = None
    ) -> tuple[PolicyVersion, list[ChangeWarning]]:
        """The version that `change` would make, and what it would mean for booked slots; of a template, for those of
        the configs that follow it. Changes nothing.

        Raises:
            InvalidInput: a value is wrong, a new config lacks one, or the calendar never opens.
            StaleVersion: another version than those of `if_version` is active.
        """
        return self._run(lambda scheduler: scheduler.preview(name, changes, if_version=if_version))

    def heat_map(self, config_name: str, days: int = 7) -> HeatMap:
        """How full the hours of the next days are.

        Raises:
            InvalidInput: the days are not from 1 to 14.
            NotFound: there is no such config.
        """
        return self._run(lambda scheduler: scheduler.heat_map(config_name, days))

    def forecast(
        self,
        config_name: str | Sequence[str],
        events: int = 1,
        at: datetime | str | None = None,
        *,
        max_per_window: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Forecast:
        """When `events` events requested for `at` (now, if not given) would be scheduled, under one config or several.
        Books nothing. With `changes`, fields of `WindowPolicy`, as if they were made to the one config already;
        `max_per_window` is short for the commonest of them.

        Raises:
            InvalidInput: the number of events, the time or a change is wrong, or a change is given for several configs.
            NotFound: there is no such config.
        """
        return self._run(
            lambda scheduler: scheduler.forecast(
                config_name, events, at, max_per_window=max_per_window, changes=changes
            )
        )
