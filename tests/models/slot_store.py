"""Slots in this process's memory: a real store, and the model the SQL stores are tested against."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from paceline.clock import Clock, SystemClock
from paceline.durations import LATEST_MS, from_ms, to_ms
from paceline.errors import Conflict, InvalidInput, NotFound, PacelineError, SlotOwned
from paceline.server.access.names import Names
from paceline.slots.booking.packer import Side
from paceline.slots.booking.packing import Booking, GroupPacker, event_ids_of, names_of
from paceline.slots.forecast.impact import WindowGroup, windows_ahead
from paceline.slots.listing import (
    NO_CAUSE,
    Cancellation,
    Cursor,
    ListedConfig,
    ListedSlot,
    SlotFilter,
    SlotHistory,
    config_page,
)
from paceline.slots.model import AssignedSlot, BookingGroup, PolicyVersion, SlotRequest, WindowPolicy
from paceline.slots.occupancy import FullRun, Occupancy, WindowCount, full_runs
from paceline.slots.ports import LockHolder, PruneResult
from paceline.slots.templates import best_template, is_template
from paceline.slots.windows import align

T = TypeVar("T")


@dataclass
class _Config:
    """One config's versions, counters and runs; also the `WindowReader` over them."""

    versions: list[PolicyVersion]
    counts: dict[int, WindowCount] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    runs: list[FullRun] = field(default_factory=list)
    all_times: Callable[[], list[int]] = list
    """The scheduled times of its slots."""
    template: str | None = None

    @property
    def active(self) -> PolicyVersion:
        return self.versions[-1]

    def windows_from(self, start_ms: int, limit: int) -> list[WindowCount]:
        first = bisect_left(self.starts, start_ms)
        return [self.counts[start] for start in self.starts[first : first + limit]]

    def run_before(self, start_ms: int) -> FullRun | None:
        index = bisect_right(self.runs, start_ms, key=lambda run: run.start_ms) - 1
        return self.runs[index] if index >= 0 else None

    def runs_before(self, starts_ms: Sequence[int]) -> list[FullRun | None]:
        return [self.run_before(start) for start in starts_ms]

    def recounted(self, size_ms: int, from_ms: int, until_ms: int | None = None) -> list[WindowCount]:
        until = LATEST_MS if until_ms is None else until_ms
        counts = Counter(align(at, size_ms) for at in self.all_times() if from_ms <= at < until)
        return [WindowCount(start, taken, taken) for start, taken in sorted(counts.items())]

    def missing_until(self) -> int:
        return 0

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        return sorted(at for at in self.all_times() if from_ms <= at < until_ms)[:limit]

    def write(self, occupancy: Occupancy) -> None:
        runs = occupancy.changed_runs()
        self.runs = sorted({run for run in self.runs if run.start_ms not in runs.removed} | set(runs.written))
        for count in occupancy.changed_windows():
            self.count(count)

    def count(self, count: WindowCount) -> None:
        if count.start_ms not in self.counts:
            insort(self.starts, count.start_ms)
        self.counts[count.start_ms] = count

    def recount(self, counts: dict[int, WindowCount]) -> None:
        self.counts = counts
        self.starts = sorted(counts)

    def find_runs(self, now_ms: int) -> None:
        policy = self.active.policy
        self.runs = full_runs(self.windows_from(align(now_ms, policy.size_ms), len(self.starts)), policy)


class MemorySlotStore:
    """A `SlotStore` in the memory of the process. Single-threaded: everything happens between two awaits."""

    def __init__(self, clock: Clock | None = None, seed: int | None = None) -> None:
        self._clock = clock or SystemClock()
        self._uniform = random.Random(seed).random
        self._configs: dict[str, _Config] = {}
        self._slots: dict[str, AssignedSlot] = {}
        self._created: dict[str, int] = {}
        self._cancelled: list[ListedSlot] = []

    async def configure(
        self,
        name: str,
        policy: WindowPolicy,
        *,
        now_ms: int | None = None,
        replacing: int | None = None,
    ) -> PolicyVersion:
        now_ms = self._now(now_ms)
        config = self._configs.get(name)
        if replacing is not None and replacing != (config.active.version if config else 0):
            raise Conflict
        template = None if is_template(name) else best_template(self._configs, name)
        before = config or (self._configs[template] if template else None)
        version = PolicyVersion(name, before.active.version + 1 if before else 1, policy, from_ms(now_ms))
        if config is None:
            self._configs[name] = _Config([version], all_times=partial(self._times, name))
            return version
        resized = policy.size_ms != config.active.policy.size_ms
        config.versions.append(version)
        if resized:
            counts: dict[int, WindowCount] = {}
            first = align(now_ms, policy.size_ms)
            for slot in self._slots.values():
                if name in slot.config_names and slot.scheduled_ms >= first:
                    start = align(slot.scheduled_ms, policy.size_ms)
                    taken = counts[start].taken + 1 if start in counts else 1
                    counts[start] = WindowCount(start, taken, taken)
            config.recount(counts)
        config.find_runs(now_ms)
        return version

    async def make_from_template(self, name: str, max_configs: int) -> PolicyVersion | None:
        template = best_template(self._configs, name)
        if template is None:
            return None
        if len([config for config in self._configs.values() if config.template == template]) >= max_configs:
            raise InvalidInput("config_name", f"{template!r} has {max_configs} configs in use")
        version = replace(self._configs[template].active, name=name)
        return self._configs.setdefault(
            name, _Config([version], all_times=partial(self._times, name), template=template)
        ).active

    async def active_version(self, name: str) -> int | None:
        config = self._configs.get(name)
        return None if config is None else config.active.version

    async def history(self, name: str) -> list[PolicyVersion]:
        config = self._configs.get(name)
        return config.versions[::-1] if config else []

    async def configs(self, *, following: bool = False) -> list[PolicyVersion]:
        active = [self._configs[name].active for name in sorted(self._configs)]
        return [version for version in active if version.policy.follow is not None or not following]

    async def search_configs(
        self, search: str, template: str | None, after: str | None, limit: int
    ) -> list[ListedConfig]:
        followed = [config.template for config in self._configs.values()]
        names = [name for name, config in self._configs.items() if template in (None, config.template or "")]
        return [
            ListedConfig(self._configs[name].active, self._configs[name].template, followed.count(name))
            for name in config_page(names, search, after, limit)
        ]

    async def book(
        self,
        names: str | Sequence[str],
        requests: Sequence[SlotRequest],
        *,
        now_ms: int | None = None,
        owner: str | None = None,
    ) -> list[Booking]:
        all_names = (names,) if isinstance(names, str) else tuple(names)
        (bookings,) = await self.book_groups([BookingGroup(all_names, requests, owner)], now_ms=now_ms)
        return bookings

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> list[list[Booking]]:
        now_ms = self._now(now_ms)
        existing = {event_id: slot for event_id in event_ids_of(groups) if (slot := self._slots.get(event_id))}
        refused: dict[str, PacelineError] = {}
        for names, requests, _ in groups:
            is_new = any(event_id not in existing for event_id, _ in requests)
            for name in names if is_new and template_configs else ():
                try:
                    if name not in self._configs:
                        await self.make_from_template(name, template_configs)
                except InvalidInput as error:
                    refused[name] = error
        configs = {name: self._configs[name] for name in names_of(groups) if name in self._configs}
        sides = {name: Side(config.active, Occupancy(config.active.policy, config)) for name, config in configs.items()}
        packer = GroupPacker(sides, refused, now_ms, self._uniform)
        outcomes = packer.book(groups, existing)
        for name, side in sides.items():
            configs[name].write(side.occupancy)
        self._slots.update((slot.event_id, slot) for slot in packer.fresh)
        self._created.update((slot.event_id, now_ms) for slot in packer.fresh)
        return outcomes

    async def lock_holders(self, names: Sequence[str]) -> dict[str, LockHolder]:
        return {}

    def series_of(self, name: str) -> str | None:
        config = self._configs.get(name)
        return None if config is None else config.template or name

    async def find(self, event_id: str) -> AssignedSlot | None:
        return self._existing(event_id)

    async def cancel(
        self, event_id: str, *, owner: str | None = None, cause: Cancellation = NO_CAUSE
    ) -> AssignedSlot | None:
        return self.cancel_now(event_id, owner=owner, cause=cause)

    def cancel_now(
        self, event_id: str, *, owner: str | None = None, cause: Cancellation = NO_CAUSE
    ) -> AssignedSlot | None:
        slot = self._slots.get(event_id)
        if slot is None:
            return None
        if slot.owner != owner:
            raise SlotOwned(event_id, slot.owner)
        del self._slots[event_id]
        record = ListedSlot(slot._replace(existing=True), self._created.pop(event_id))
        serial, at = len(self._cancelled) + 1, self._now(None)
        self._cancelled.append(record._replace(serial=serial, cancelled_ms=at, reason=cause.reason, actor=cause.actor))
        for name in slot.config_names:
            config = self._configs[name]
            start = align(slot.scheduled_ms, config.active.policy.size_ms)
            if start in config.counts:
                occupancy = Occupancy(config.active.policy, config)
                occupancy.release(start)
                config.write(occupancy)
        return slot._replace(existing=True)

    async def booked(self, before_ms: int, after: tuple[int, str] | None, limit: int) -> list[AssignedSlot]:
        slots = sorted(
            (slot for slot in self._slots.values() if slot.scheduled_ms < before_ms),
            key=lambda slot: (slot.scheduled_ms, slot.event_id),
        )
        first = bisect_right(slots, after, key=lambda slot: (slot.scheduled_ms, slot.event_id)) if after else 0
        return [slot._replace(existing=True) for slot in slots[first : first + limit]]

    async def page(
        self, selection: SlotFilter, after: Cursor | None, limit: int, *, latest_first: bool = False
    ) -> list[ListedSlot]:
        records = sorted(self._matching(selection), key=lambda record: record.cursor, reverse=latest_first)
        if after is not None:
            records = [
                record for record in records if (record.cursor < after if latest_first else record.cursor > after)
            ]
        return records[:limit]

    async def count(self, selection: SlotFilter) -> int:
        return len(self._matching(selection))

    def _matching(self, selection: SlotFilter) -> list[ListedSlot]:
        booked = [ListedSlot(slot._replace(existing=True), self._created[name]) for name, slot in self._slots.items()]
        return [
            record
            for record in booked + self._cancelled
            if selection.from_ms <= record.slot.scheduled_ms < selection.to_ms
            and selection.config_name in (None, *record.slot.config_names)
            and Names(selection.names).allow(record.slot.config_name)
            and selection.status in (None, record.status)
            and (selection.owner is None or selection.owner == (record.slot.owner or ""))
        ]

    async def slot_history(
        self, name: str, last: timedelta, horizon: timedelta, *, now: datetime | None = None
    ) -> SlotHistory:
        moment = from_ms(self._now(None)) if now is None else now
        at, since, end = to_ms(moment), to_ms(moment - last), to_ms(moment + horizon)
        mine = [one for one in self._slots.values() if one.config_name == name and since <= one.scheduled_ms <= end]
        past = [one for one in mine if one.scheduled_ms <= at]
        return SlotHistory(
            moment,
            Counter(one.requested_ms // 1000 for one in mine if since <= one.requested_ms <= at),
            Counter(one.scheduled_ms // 1000 for one in past),
            Counter(one.scheduled_ms * 1000 for one in past),
            Counter(one.scheduled_ms // 1000 for one in mine if one.scheduled_ms > at),
        )

    async def beginning(self, prefix: str, limit: int) -> list[ListedSlot]:
        ids = sorted(event_id for event_id in self._slots if event_id.startswith(prefix))
        return [ListedSlot(self._slots[name]._replace(existing=True), self._created[name]) for name in ids[:limit]]

    async def record(self, event_id: str) -> ListedSlot | None:
        slot = self._existing(event_id)
        return None if slot is None else ListedSlot(slot, self._created[event_id])

    async def count_beyond(self, name: str, max_delay_ms: int) -> int:
        return sum(
            any(name in (charged, self._configs[charged].template) for charged in slot.config_names)
            and slot.scheduled_ms > self._now(None)
            and slot.scheduled_ms - max(slot.requested_ms, self._created[event_id]) > max_delay_ms
            for event_id, slot in self._slots.items()
        )

    async def survey(self, name: str, look: Callable[[PolicyVersion, Occupancy, int], T]) -> T:
        config = self._configs.get(name)
        if config is None:
            raise NotFound("config", name)
        return look(config.active, Occupancy(config.active.policy, config), self._now(None))

    async def survey_joint(self, names: Sequence[str], look: Callable[[Sequence[Side], int], T]) -> T:
        for name in names:
            if name not in self._configs:
                raise NotFound("config", name)
        configs = [self._configs[name] for name in names]
        sides = [Side(config.active, Occupancy(config.active.policy, config)) for config in configs]
        return look(sides, self._now(None))

    async def survey_followers(
        self, template: str, size_ms: int, look: Callable[[PolicyVersion, Iterable[WindowGroup]], T]
    ) -> list[T]:
        now_ms = self._now(None)
        return [
            look(
                config.active,
                windows_ahead(Occupancy(config.active.policy, config), config.active.policy, size_ms, now_ms),
            )
            for config in self._configs.values()
            if config.template == template
        ]

    async def prune(self, before_ms: int) -> PruneResult:
        sizes = {name: config.active.policy.size_ms for name, config in self._configs.items()}
        # A window's slots are pruned together: a resize counts them again.
        old = [
            event_id
            for event_id, slot in self._slots.items()
            if all(slot.scheduled_ms < align(before_ms, sizes[name]) for name in slot.config_names)
        ]
        for event_id in old:
            del self._slots[event_id]
        self._cancelled = [record for record in self._cancelled if (record.cancelled_ms or 0) >= before_ms]
        windows = 0
        for config in self._configs.values():
            size = config.active.policy.size_ms
            kept = {start: count for start, count in config.counts.items() if start + size > before_ms}
            windows += len(config.counts) - len(kept)
            config.recount(kept)
            config.runs = [run for run in config.runs if run.resume_ms > before_ms]
        return PruneResult(len(old), windows)

    async def close(self) -> None:
        """Nothing to free: the memory goes with the object."""

    def _times(self, name: str) -> list[int]:
        return [slot.scheduled_ms for slot in self._slots.values() if name in slot.config_names]

    def _existing(self, event_id: str) -> AssignedSlot | None:
        slot = self._slots.get(event_id)
        return None if slot is None else slot._replace(existing=True)

    def _now(self, now_ms: int | None) -> int:
        return -(-self._clock.now_us() // 1000) if now_ms is None else now_ms
