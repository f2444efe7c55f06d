"""`SlotScheduler`: assigns the time at which an event may run. Group commit over a `SlotStore`."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from paceline import tracing
from paceline.batching import in_batches
from paceline.durations import parse_instant, to_ms
from paceline.errors import (
    ConfigurationError,
    Conflict,
    InvalidInput,
    NotFound,
    PacelineError,
    StaleVersion,
    StoreUnavailable,
)
from paceline.options import check_wait, check_whole
from paceline.service_client import check_token, is_service
from paceline.slots import events
from paceline.slots.booking.packing import Booking
from paceline.slots.booking.writer import MAX_TRIES, SlotWriter
from paceline.slots.carriers import Carriers
from paceline.slots.config_names import ConfigNames, booking_names, name_tuple
from paceline.slots.inspection import check_opens, check_version
from paceline.slots.listing import MOST_LISTED, Cancellation, ListedConfig
from paceline.slots.maintenance import SlotMaintenance
from paceline.slots.model import (
    AssignedSlot,
    BookingGroup,
    PolicyVersion,
    SlotRequest,
    TracedRequest,
    WindowPolicy,
    changed_policy,
    checked_id,
    checked_name,
)
from paceline.slots.ports import NullObserver, SlotObserver, SlotStore
from paceline.slots.replan.run import ReplanStore

MAX_POLICIES = 10_000
"""The maximum of policies that are cached for display."""

BULK_BATCH = 10_000
"""How many events of a stream are booked at a time."""

EventTime = tuple[str, datetime | str]
P = ParamSpec("P")
T = TypeVar("T")


class SchedulerOptions(TypedDict, total=False):
    """The options of `SlotScheduler`."""

    observer: SlotObserver | None
    batch: int
    bulk_batch: int
    cache_ttl: float
    template_configs: int


class OpenOptions(SchedulerOptions, total=False):
    """The options of `SlotScheduler.open`."""

    token: str | None


class SlotScheduler(SlotMaintenance):
    """Books times at which the downstream can take the work.

    Idempotent: the same event always gets the same slot. A slot that `assign` returned is committed. Concurrent callers
    share transactions; any number of processes may work on one database.

    Raises:
        ConfigurationError: the store or an option can't be used.
    """

    def __init__(
        self,
        store: SlotStore,
        *,
        observer: SlotObserver | None = None,
        batch: int = 1000,
        bulk_batch: int = BULK_BATCH,
        cache_ttl: float = 5.0,
        replans: ReplanStore | None = None,
        template_configs: int = 10_000,
    ) -> None:
        if store is None or isinstance(store, str | type):
            raise ConfigurationError("store", f"{store!r} is no slot store; open a URL with SlotScheduler.open(url)")
        check_whole("batch", batch)
        check_whole("bulk_batch", bulk_batch)
        check_wait("cache_ttl", cache_ttl)
        check_whole("template_configs", template_configs)
        self._store = store
        self._replans = replans
        self._observer = observer or NullObserver()
        self._batch = batch
        self._bulk_batch = bulk_batch
        self._cache_ttl = cache_ttl
        self._writer = SlotWriter(
            store, self._observer, max_batch=batch, bulk_batch=bulk_batch, template_configs=template_configs
        )
        self._policies: dict[str, tuple[float, PolicyVersion]] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        carriers: Carriers | None = None,
        token: str | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> AsyncIterator[SlotScheduler]:
        """A scheduler on the database at `url`, migrated and ready; closed when the block ends. `carriers` move the
        work of slots that are re-planned; by default, the queue items in the same database. A URL such as
        `https://paceline.internal` is a service's, which `token` lets in.

        Raises:
            ConfigurationError: the URL is not a database's, its driver is not installed, or an option can't be used.
            StoreUnavailable: the database does not answer.
        """
        if is_service(url):
            from paceline.slots.remote import RemoteSlotScheduler

            async with RemoteSlotScheduler(url, token, **options) as remote:
                yield remote
            return
        check_token(token, url)
        # Imported here: stores import their drivers, and importing paceline must not.
        from paceline.slots.stores import slot_stores

        if carriers is None:
            # The one place where slots know of the queue: an item must move with its slot, or it would start in a
            # window that other events fill.
            from paceline.dispatch.stores import QueueCarrier

            carriers = {None: QueueCarrier()}
        store, replans = await slot_stores(url, carriers=carriers)
        try:
            scheduler = cls(store, replans=replans, **options)
        except BaseException:  # an option is wrong
            await store.close()
            raise
        async with scheduler:
            yield scheduler

    async def __aenter__(self) -> SlotScheduler:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets accepted assignments finish, then closes the store."""
        await self._writer.close()
        await self._store.close()

    # -- policies ------------------------------------------------------------------------------------------------

    async def configure(self, name: str, policy: WindowPolicy, *, now: datetime | None = None) -> PolicyVersion:
        """Makes `policy` the active version of `name`. Effective from the next call on any node.

        Raises:
            ConfigurationError: the policy's calendar never opens.
            InvalidInput: the name is no config's name.
        """
        checked_name(name)
        now_ms = None if now is None else to_ms(parse_instant(now, "now"))
        await check_opens(policy, now_ms)
        return await self._after_change(await self._retried(name, self._store.configure, name, policy, now_ms=now_ms))

    async def ensure(self, name: str, policy: WindowPolicy) -> PolicyVersion:
        """The active version of `name`; if there is none, `policy` becomes its first one.

        Raises:
            ConfigurationError: the policy's calendar never opens.
        """
        checked_name(name)
        await check_opens(policy)

        async def attempt() -> PolicyVersion:
            versions = await self._store.history(name)
            return versions[0] if versions else await self._store.configure(name, policy, replacing=0)

        return self._cached(await self._retried(name, attempt))

    async def change(
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
        checked_name(name)

        async def attempt() -> PolicyVersion:
            current, own = await self._current(name)
            check_version(if_version, name, current, own)
            policy = changed_policy(current.policy if current else None, changes)
            await check_opens(policy)
            return await self._store.configure(name, policy, replacing=own)

        return await self._after_change(await self._retried(name, attempt))

    async def _after_change(self, version: PolicyVersion) -> PolicyVersion:
        self._cached(version)
        if events.log.isEnabledFor(logging.INFO):
            with suppress(PacelineError):  # the change is committed, even if it can't be logged
                events.log_change(version, await self._store.history(version.name))
        return version

    async def policy(self, name: str) -> PolicyVersion:
        """The active policy, for display; of a config that is not made yet, its template's. Each look-up reads the
        number of the active version and loads the policy if that changed, so every process shows a change at once.
        While the store is unavailable, a policy that was confirmed less than `cache_ttl` seconds ago is returned.

        Raises:
            NotFound: there is no such config.
            StoreUnavailable: the store does not answer, and no recent policy is known.
        """
        cached = self._policies.get(checked_name(name))
        try:
            version = await self._store.active_version(name)
        except StoreUnavailable:
            if cached is None or time.monotonic() - cached[0] >= self._cache_ttl:
                raise
            self._observer.policy_looked_up(name, cached=True)
            return cached[1]
        is_current = cached is not None and cached[1].version == version
        self._observer.policy_looked_up(name, cached=is_current)
        if cached is None or not is_current:
            current, own = await self._current(name)
            if current is None or not own:
                self._policies.pop(name, None)
                if current is None:
                    raise NotFound("config", name)
                return current
            events.log_cache_miss(name)
            return self._cached(current)
        return self._cached(cached[1])

    def _cached(self, version: PolicyVersion) -> PolicyVersion:
        """Caches a version that is active now."""
        if len(self._policies) >= MAX_POLICIES and version.name not in self._policies:
            self._policies.clear()
        self._policies[version.name] = time.monotonic(), version
        return version

    async def check_configs(self, names: ConfigNames) -> None:
        """Raises an error unless slots can be booked under these configs: each is there, or has a template.

        Raises:
            InvalidInput: a name is wrong, or is a template's.
            NotFound: there is no such config.
        """
        names = booking_names(names)
        for name in [names] if isinstance(names, str) else names:
            await self._store.survey(name, lambda *_: None)

    async def history(self, name: str) -> list[PolicyVersion]:
        """Every version of `name`, newest first; of a config that is not made yet, its template's active one.

        Raises:
            NotFound: there is no such config, and no template for it.
        """
        versions = await self._store.history(checked_name(name))
        return versions or [await self.policy(name)]

    async def configs(self, *, following: bool = False) -> list[PolicyVersion]:
        """The active version of every config, by name; with `following`, of those that follow a downstream."""
        return await self._store.configs(following=following)

    async def search_configs(
        self, search: str = "", *, template: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[ListedConfig]:
        """A page of the configs whose names hold a text, whatever its case, by name. With `template`, only those that
        follow it; the empty text selects those that follow none. `after` is the last name of the page before.

        Raises:
            InvalidInput: the limit is not from 1 to 1000.
        """
        if not 1 <= limit <= MOST_LISTED:
            raise InvalidInput("limit", f"must be a whole number from 1 to {MOST_LISTED}")
        return await self._store.search_configs(search, template, after, limit)

    def flush(self) -> None:
        """Empties the cache of policies; the next look-up loads them from the store."""
        self._policies.clear()

    # -- slots ---------------------------------------------------------------------------------------------------

    async def assign(
        self,
        event_id: str,
        config_name: str | Sequence[str] = (),
        requested_time: datetime | str = "",
        *,
        config_names: Sequence[str] = (),
    ) -> AssignedSlot:
        """The event's slot: the one it has, or else the earliest free one at or after `requested_time` and now.

        Under several configs, up to 8, the slot lies in one open window with room of each, and is charged in all of
        them or in none: `await slots.assign("order-1", ["bank", "merchant-7"], at)`.

        Raises:
            InvalidInput: the id, a name or the time is wrong.
            NotFound: there is no such config.
            SlotsExhausted: nothing is free within the `max_delay` of every policy.
            StoreUnavailable: the store does not answer; the slot may have been booked.
        """
        request = SlotRequest.of(event_id, requested_time)
        if tracing.API in sys.modules and (origin := tracing.origin()) is not None:
            request = TracedRequest.within(origin, request)
        started = time.perf_counter()
        names = name_tuple(booking_names(config_name, config_names))
        ((booking,),) = await self._writer.submit([BookingGroup(names, (request,))])
        slot = _slot_or_raise(booking)
        # Under the slot's own config: the requested one need not exist, if the event had a slot before.
        self._observer.assigned(slot.config_name, time.perf_counter() - started)
        return slot

    async def assign_many(
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
        bookings = await self.book(
            SlotRequest.all_of(events),
            booking_names(config_name, config_names),
            owner=owner,
        )
        return [_slot_or_raise(booking) for booking in bookings]

    async def book(
        self, requests: Sequence[SlotRequest], config_name: str | Sequence[str], *, owner: str | None = None
    ) -> list[Booking]:
        """The outcome of each request, in order: its slot or its error. Large lists take several transactions, each
        short enough that other callers wait less than a second for it. New slots belong to `owner`, the only
        application that may cancel them; without an owner, any caller may.

        Raises:
            StoreUnavailable: the store does not answer; slots of earlier transactions stay booked.
        """
        group = BookingGroup(name_tuple(booking_names(config_name)), requests, owner)
        return (await self.book_groups([group]))[0]

    async def book_groups(self, groups: Sequence[BookingGroup]) -> list[list[Booking]]:
        """As `book`, for requests under any number of sets of configs: the outcomes of each group, in order. Groups
        share transactions, so a thousand lines with a thousand configs take a few.

        Raises:
            InvalidInput: a name is wrong, or is a template's.
            StoreUnavailable: the store does not answer; slots of earlier transactions stay booked.
        """
        for group in groups:
            booking_names(group.names)
        return await self._writer.book(groups)

    async def assign_stream(
        self,
        requests: AsyncIterable[SlotRequest] | Iterable[SlotRequest],
        config_name: str | Sequence[str] = (),
        *,
        config_names: Sequence[str] = (),
    ) -> AsyncIterator[list[Booking]]:
        """Books an endless supply in constant memory, and yields the outcomes of each batch."""
        names = booking_names(config_name, config_names)
        async for batch in in_batches(requests, self._bulk_batch):
            yield await self.book(batch, names)

    async def find(self, event_id: str) -> AssignedSlot:
        """The event's slot.

        Raises:
            NotFound: the event has no slot.
        """
        slot = await self._store.find(checked_id(event_id))
        if slot is None:
            raise NotFound("slot", event_id)
        return slot

    async def cancel(
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
        checked_id(event_id)
        cause = Cancellation.of(reason, owner if actor is None else actor)
        slot = await self._retried(None, self._store.cancel, event_id, owner=owner, cause=cause)
        if slot is None:
            raise NotFound("slot", event_id)
        return slot

    async def _retried(self, name: str | None, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Retries a transaction that conflicts with another writer."""
        for attempt in itertools.count(1):
            try:
                return await work(*args, **kwargs)
            except Conflict as conflict:
                self._note_conflict(conflict, name, attempt)
        raise AssertionError("unreachable")

    def _note_conflict(self, conflict: Conflict, name: str | None, attempts: int) -> None:
        """Records a conflict before a retry. Raises it if it can't be retried, or after the last attempt."""
        if isinstance(conflict, StaleVersion):
            raise conflict
        if name is not None:
            self._observer.contended(name)
            events.log_contention(name)
        if attempts == MAX_TRIES:
            raise conflict


def _slot_or_raise(booking: Booking) -> AssignedSlot:
    if isinstance(booking, PacelineError):
        raise booking
    return booking
