"""Read-only views of slots: which are booked, why at their times, and what a change of policy would do to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from paceline.durations import EPOCH, duration_ms, from_ms, parse_instant, to_ms
from paceline.errors import ConfigurationError, InvalidInput, NotFound, StaleVersion
from paceline.slots.config_names import booking_names
from paceline.slots.explain import Explanation, RemovedVersion, explain
from paceline.slots.forecast import impact
from paceline.slots.forecast.forecast import Forecast, forecast
from paceline.slots.forecast.heat_map import MAX_DAYS, HeatMap, heat_map
from paceline.slots.forecast.impact import ChangeWarning, WindowGroup
from paceline.slots.forecast.joint import joint_forecast
from paceline.slots.listing import EVERYTHING, MOST_LISTED, Cursor, ListedSlot, SlotFilter, SlotHistory, is_latest_first
from paceline.slots.model import (
    AssignedSlot,
    PolicyVersion,
    WindowPolicy,
    changed_policy,
    checked_id,
    checked_name,
)
from paceline.slots.occupancy import Occupancy
from paceline.slots.ports import SlotStore
from paceline.slots.templates import best_template, is_template

Started = Callable[[Sequence[AssignedSlot]], Awaitable[set[str]]]
"""Returns, of some slots, the events whose work has started."""
OPENS_WITHIN = timedelta(days=3660)
"""A calendar that opens no window within ten years is rejected as a mistake."""


async def check_opens(policy: WindowPolicy, now_ms: int | None = None) -> None:
    """Raises: ConfigurationError: it is no policy, or its calendar never opens."""
    if not isinstance(policy, WindowPolicy):
        example = "WindowPolicy(max_per_window=100, window='PT4S')"
        raise ConfigurationError("policy", f"must be a WindowPolicy, not a {type(policy).__name__}; write {example}")
    at = int(time.time() * 1000) if now_ms is None else now_ms
    # On a thread: a calendar that never opens takes long to search.
    if await asyncio.to_thread(policy.next_open, at) > at + duration_ms(OPENS_WITHIN):
        raise ConfigurationError("calendar", "opens no whole window within ten years; widen its hours or blackouts")


def check_version(if_version: Collection[int] | None, name: str, current: PolicyVersion | None, own: int) -> None:
    """Raises: StaleVersion: neither the version that a caller was shown nor the config's own is among those of
    `if_version`. They differ for a config that its template stands for: its own is 0."""
    shown = current.version if current else 0
    if if_version is not None and own not in if_version and shown not in if_version:
        raise StaleVersion(name, own or None)


class SlotInspection:
    """The read-only part of `SlotScheduler`."""

    _store: SlotStore

    async def page(
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
        if not 1 <= limit <= MOST_LISTED:
            raise InvalidInput("limit", f"must be a whole number from 1 to {MOST_LISTED}")
        after = None if cursor is None else Cursor.decoded(cursor)
        records = await self._store.page(selection, after, limit + 1, latest_first=is_latest_first(sort))
        following = records[limit - 1].cursor.encoded() if len(records) > limit else None
        return records[:limit], following

    async def count(self, selection: SlotFilter = EVERYTHING) -> int:
        """How many booked and cancelled slots match; 100,001 if there are more than 100,000."""
        return await self._store.count(selection)

    async def per_second(self, name: str, *, last: timedelta, ahead: timedelta) -> SlotHistory:
        """The slots of a config per second: in this `last` time as events wanted them and as they were, and those that
        are booked for the time `ahead`.

        Raises:
            InvalidInput: the name is wrong.
        """
        return await self._store.slot_history(checked_name(name), last, ahead)

    async def beginning(self, prefix: str, *, limit: int = 10) -> list[ListedSlot]:
        """The first booked slots whose events' ids begin with `prefix`, in order of the ids.

        Raises:
            InvalidInput: the prefix is no part of an id, or the limit is not from 1 to 1000.
        """
        if not 1 <= limit <= MOST_LISTED:
            raise InvalidInput("limit", f"must be a whole number from 1 to {MOST_LISTED}")
        return await self._store.beginning(checked_id(prefix, "prefix"), limit)

    async def explain(self, event_id: str) -> Explanation:
        """Why the event got its time: the windows that were passed over, and what would happen today.

        Raises:
            NotFound: the event has no slot.
        """
        record = await self._store.record(checked_id(event_id))
        if record is None:
            raise NotFound("slot", event_id)
        then: dict[str, PolicyVersion] = {}
        removed: list[RemovedVersion] = []
        for name, number, _ in record.slot.windows:
            versions = await self._store.history(name)
            version = next((version for version in versions if version.version == number), None)
            if version is None:
                version = await self._version_of_template(name, number, record)
                template = None if version is None else version.name
                removed.append(RemovedVersion(name, number, bool(versions), template))
            if version is not None:
                then[name] = replace(version, name=name)
        return await self._store.survey_joint(
            record.slot.config_names, lambda sides, now_ms: explain(record, then, removed, sides, now_ms)
        )

    async def _version_of_template(self, name: str, number: int, record: ListedSlot) -> PolicyVersion | None:
        """The version of a template that a config had when the slot was booked, and which has the same number; None if
        no template has it. Templates that are newer than the slot may match the name better."""
        booked = from_ms(record.created_ms if record.moved_ms is None else record.moved_ms)
        templates = {config.name for config in await self._store.configs() if is_template(config.name)}
        while (template := best_template(templates, name)) is not None:
            for version in await self._store.history(template):
                if version.version == number and version.created_at <= booked:
                    return version
            templates.remove(template)
        return None

    async def unstarted(self, started: Started, *, before: datetime) -> list[AssignedSlot]:
        """Slots of any owner that were scheduled before a time and whose work never started. `started` returns, page by
        page, which events are known to have work."""
        return [slot async for slot in self._unstarted(started, before)]

    async def _unstarted(self, started: Started, before: datetime, page: int = 1000) -> AsyncIterator[AssignedSlot]:
        cursor: tuple[int, str] | None = None
        until = to_ms(parse_instant(before, "before"))
        while slots := await self._store.booked(until, cursor, page):
            known = await started(slots)
            for slot in slots:
                if slot.event_id not in known:
                    yield slot
            cursor = slots[-1].scheduled_ms, slots[-1].event_id

    async def preview(
        self, name: str, changes: Mapping[str, Any], *, if_version: Collection[int] | None = None
    ) -> tuple[PolicyVersion, list[ChangeWarning]]:
        """The version that `change` would make, and what it would mean for booked slots; of a template, for those of
        the configs that follow it. Changes nothing.

        Raises:
            InvalidInput: a value is wrong, a new config lacks one, or the calendar never opens.
            StaleVersion: another version than those of `if_version` is active.
        """
        current, own = await self._current(checked_name(name))
        check_version(if_version, name, current, own)
        policy = changed_policy(current.policy if current else None, changes)
        await check_opens(policy)
        if current is None:
            return PolicyVersion(name, 1, policy, EPOCH), []

        closed, over_limit = await self._changed_windows(name, policy)
        past = 0
        if policy.max_delay_ms is not None:
            past = await self._store.count_beyond(name, policy.max_delay_ms)
        following = replace(current, version=current.version + 1, policy=policy)
        return following, impact.warnings(past, closed, over_limit)

    async def _changed_windows(self, name: str, policy: WindowPolicy) -> tuple[int, int]:
        """How many slots would lie in windows that are closed, and how many would be over the limit."""

        def look(active: PolicyVersion, occupancy: Occupancy, now_ms: int) -> tuple[int, int]:
            windows = impact.windows_ahead(occupancy, active.policy, policy.size_ms, now_ms)
            return impact.changed_windows(active.policy, policy, windows)

        def look_at_followers(active: PolicyVersion, windows: Iterable[WindowGroup]) -> tuple[int, int]:
            return impact.changed_windows(active.policy, policy, windows)

        if not is_template(name):
            return await self._store.survey(name, look)
        effects = await self._store.survey_followers(name, policy.size_ms, look_at_followers)
        return sum(closed for closed, _ in effects), sum(over for _, over in effects)

    async def _current(self, name: str) -> tuple[PolicyVersion | None, int]:
        """The policy that a booking under `name` would have, its own or its template's; and the number of its own
        active version, 0 if it has none yet."""
        versions = await self._store.history(name)
        if versions:
            return versions[0], versions[0].version
        if is_template(name):
            return None, 0
        try:
            return await self._store.survey(name, lambda active, *_: active), 0
        except NotFound:
            return None, 0

    async def heat_map(self, config_name: str, days: int = 7) -> HeatMap:
        """How full the hours of the next days are.

        Raises:
            InvalidInput: the days are not from 1 to 14.
            NotFound: there is no such config.
        """
        if not 1 <= days <= MAX_DAYS:
            raise InvalidInput("days", f"must be a whole number from 1 to {MAX_DAYS}")

        def look(version: PolicyVersion, occupancy: Occupancy, now_ms: int) -> HeatMap:
            return heat_map(version, occupancy, now_ms, days)

        return await self._store.survey(checked_name(config_name), look)

    async def forecast(
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
        requested_ms = None if at is None else to_ms(parse_instant(at, "at"))
        names = booking_names(config_name)
        changed = dict(changes or {}) | ({} if max_per_window is None else {"max_per_window": max_per_window})
        if not isinstance(names, str):
            if changed:
                raise InvalidInput(next(iter(changed)), "is for one config; leave it out, or name one")
            return await self._store.survey_joint(
                names,
                lambda sides, now_ms: joint_forecast(
                    sides, now_ms, events, now_ms if requested_ms is None else requested_ms
                ),
            )

        def look(version: PolicyVersion, occupancy: Occupancy, now_ms: int) -> Forecast:
            if changed:
                version = replace(version, policy=changed_policy(version.policy, changed))
                occupancy = occupancy.under(version.policy, now_ms)
            return forecast(version, occupancy, now_ms, events, now_ms if requested_ms is None else requested_ms)

        return await self._store.survey(names, look)
