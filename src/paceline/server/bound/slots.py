"""The slots and configs of some names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from paceline.errors import NotFound
from paceline.server.access.names import Names
from paceline.server.bound.calls import offer, refuse_others
from paceline.slots import SlotScheduler
from paceline.slots.booking.packing import Booking
from paceline.slots.forecast.impact import ChangeWarning
from paceline.slots.listing import EVERYTHING, MOST_LISTED, ListedConfig, ListedSlot, SlotFilter
from paceline.slots.model import AssignedSlot, BookingGroup, PolicyVersion, SlotRequest, WindowPolicy


class BoundSlots(SlotScheduler):
    """A `SlotScheduler` that knows only configs of some names, and slots whose configs all have such names."""

    def __init__(self, slots: SlotScheduler, names: Names) -> None:
        self._original = slots
        self._names = names

    # -- configs -------------------------------------------------------------------------------------------------

    async def policy(self, name: str) -> PolicyVersion:
        self._names.check(name)
        version = await self._original.policy(name)
        if not self._names.allow(version.name):  # a template of others
            raise NotFound("config", name)
        return version

    async def history(self, name: str) -> list[PolicyVersion]:
        self._names.check(name)
        versions = [version for version in await self._original.history(name) if self._names.allow(version.name)]
        if not versions:
            raise NotFound("config", name)
        return versions

    async def configs(self, *, following: bool = False) -> list[PolicyVersion]:
        return [one for one in await self._original.configs(following=following) if self._names.allow(one.name)]

    async def search_configs(
        self, search: str = "", *, template: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[ListedConfig]:
        if template:
            self._names.check(template)
        found: list[ListedConfig] = []
        while True:
            # Templates of others are none here: what follows one of them follows none.
            page = await self._original.search_configs(search, template=template or None, after=after, limit=limit)
            own = [self._listed(one) for one in page if self._names.allow(one.version.name)]
            found += [one for one in own if template != "" or one.template is None]
            if len(page) < limit or len(found) >= limit:
                return found[:limit]
            after = page[-1].version.name

    def _listed(self, config: ListedConfig) -> ListedConfig:
        is_known = config.template is None or self._names.allow(config.template)
        return config if is_known else config._replace(template=None)

    async def configure(self, name: str, policy: WindowPolicy, **options: Any) -> PolicyVersion:
        self._check_policy(name, policy.follow)
        return await self._original.configure(name, policy, **options)

    async def ensure(self, name: str, policy: WindowPolicy) -> PolicyVersion:
        self._check_policy(name, policy.follow)
        version = await self._original.ensure(name, policy)
        self._names.check(version.name)
        return version

    async def change(
        self, name: str, changes: Mapping[str, Any], *, if_version: Collection[int] | None = None
    ) -> PolicyVersion:
        self._check_policy(name, changes.get("follow"))
        return await self._original.change(name, changes, if_version=if_version)

    async def preview(
        self, name: str, changes: Mapping[str, Any], *, if_version: Collection[int] | None = None
    ) -> tuple[PolicyVersion, list[ChangeWarning]]:
        self._check_policy(name, changes.get("follow"))
        return await self._original.preview(name, changes, if_version=if_version)

    def _check_policy(self, name: object, follow: object) -> None:
        """A config may follow a downstream of these names."""
        self._names.check(name, *(() if follow is None else (follow,)))

    # -- booking -------------------------------------------------------------------------------------------------

    async def assign(
        self, event_id: str, config_name: str | Sequence[str] = (), *args: Any, **kwargs: Any
    ) -> AssignedSlot:
        self._check_names(config_name)
        self._names.check(*kwargs.get("config_names", ()))
        slot = await self._original.assign(event_id, config_name, *args, **kwargs)
        return self._own(slot)

    async def book(
        self, requests: Sequence[SlotRequest], config_name: str | Sequence[str], *, owner: str | None = None
    ) -> list[Booking]:
        self._check_names(config_name)
        return [self._shown(one) for one in await self._original.book(requests, config_name, owner=owner)]

    async def book_groups(self, groups: Sequence[BookingGroup]) -> list[list[Booking]]:
        self._names.check(*chain.from_iterable(group.names for group in groups))
        return [[self._shown(one) for one in booked] for booked in await self._original.book_groups(groups)]

    async def cancel(self, event_id: str, **options: Any) -> AssignedSlot:
        await self.find(event_id)
        return await self._original.cancel(event_id, **options)

    def _check_names(self, config_name: str | Sequence[str]) -> None:
        self._names.check(*([config_name] if isinstance(config_name, str) else config_name))

    def _is_own(self, slot: AssignedSlot) -> bool:
        return all(map(self._names.allow, slot.config_names))

    def _own(self, slot: AssignedSlot) -> AssignedSlot:
        """The slot; an event keeps the one that it has, also of others."""
        if not self._is_own(slot):
            raise self._names.refusal(f"the event {slot.event_id!r} has a slot of others already; choose another id")
        return slot

    def _shown(self, booking: Booking) -> Booking:
        if isinstance(booking, AssignedSlot) and not self._is_own(booking):
            return self._names.refusal(
                f"the event {booking.event_id!r} has a slot of others already; choose another id"
            )
        return booking

    # -- slots ---------------------------------------------------------------------------------------------------

    async def find(self, event_id: str) -> AssignedSlot:
        slot = await self._original.find(event_id)
        if not self._is_own(slot):
            raise NotFound("slot", event_id)
        return slot

    async def explain(self, event_id: str) -> Any:
        await self.find(event_id)
        return await self._original.explain(event_id)

    async def page(self, selection: SlotFilter = EVERYTHING, **options: Any) -> tuple[list[ListedSlot], str | None]:
        records, following = await self._original.page(self._within(selection), **options)
        # What is also of others is left out here: a page may be shorter than asked for.
        return [record for record in records if self._is_own(record.slot)], following

    async def count(self, selection: SlotFilter = EVERYTHING) -> int:
        return await self._original.count(self._within(selection))

    async def beginning(self, prefix: str, *, limit: int = 10) -> list[ListedSlot]:
        found = await self._original.beginning(prefix, limit=MOST_LISTED)
        return [record for record in found if self._is_own(record.slot)][:limit]

    def _within(self, selection: SlotFilter) -> SlotFilter:
        if selection.config_name is not None:
            self._names.check(selection.config_name)
        return selection._replace(names=self._names.patterns)


offer(
    BoundSlots,
    SlotScheduler,
    "config_name",
    lambda slots, name: slots._check_names(name),
    ["replan", "heat_map", "forecast"],
)
offer(BoundSlots, SlotScheduler, "names", lambda slots, names: slots._check_names(names), ["check_configs"])
refuse_others(BoundSlots, SlotScheduler)
