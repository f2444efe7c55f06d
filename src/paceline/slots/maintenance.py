"""Maintenance of slots: re-plans, reconciliation of slots whose work never started, and retention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from paceline.durations import parse_instant, to_ms
from paceline.errors import ConfigurationError, InvalidInput, NotFound, SlotInUse, SlotOwned
from paceline.slots.inspection import SlotInspection, Started
from paceline.slots.model import MOST_PER_WINDOW, AssignedSlot
from paceline.slots.ports import PruneResult
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import (
    Replan,
    ReplanStore,
    SupposedLimit,
    checked_direction,
    preview,
    replan,
    span_of,
)


class SlotMaintenance(SlotInspection):
    """The part of `SlotScheduler` that moves, frees and prunes slots."""

    _replans: ReplanStore | None

    @abstractmethod
    async def cancel(
        self, event_id: str, *, owner: str | None = None, reason: str | None = None, actor: str | None = None
    ) -> AssignedSlot:
        """Gives the event's slot back."""

    async def replan(
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
        if self._replans is None:
            raise ConfigurationError("replans", "is needed to re-plan; SlotScheduler.open brings it")
        span, way = span_of(config_name, since, until, notice), checked_direction(direction)
        if max_per_window is None:
            return await replan(self._replans, span, way, dry_run=dry_run)
        if not dry_run:
            raise InvalidInput("max_per_window", "is tried only with dry_run; a limit is changed by `change`")
        if type(max_per_window) is not int or not 1 <= max_per_window <= MOST_PER_WINDOW:
            raise InvalidInput("max_per_window", f"must be a whole number from 1 to {MOST_PER_WINDOW}")
        return await preview(SupposedLimit(self._replans, max_per_window), span, way)

    async def reconcile(
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
        leaked: list[AssignedSlot] = []
        async for slot in self._unstarted(started, before, page):
            if slot.owner != owner:
                continue
            if redispatch is not None:
                await redispatch(slot)
            else:
                try:
                    await self.cancel(slot.event_id, owner=owner)
                except SlotInUse:
                    continue
                except NotFound:
                    pass  # cancelled concurrently
            leaked.append(slot)
        return leaked

    async def free_unstarted(
        self, started: Started, *, before: datetime, reason: str | None = None, actor: str | None = None
    ) -> list[AssignedSlot]:
        """Cancels slots of any owner that were scheduled before a time and whose work never started, for an operator.
        Returns the slots that it cancelled."""
        freed: list[AssignedSlot] = []
        async for slot in self._unstarted(started, before):
            with suppress(NotFound, SlotInUse, SlotOwned):  # cancelled, booked again or begun in the meantime
                freed.append(await self.cancel(slot.event_id, owner=slot.owner, reason=reason, actor=actor))
        return freed

    async def prune(self, before: datetime) -> PruneResult:
        """Deletes slots and windows that lie before a time. A slot whose work is still pending stays, however late it
        is. An event whose slot was deleted gets a new one if it is booked again. If a config gets longer windows later,
        and slots of its new current window were deleted, that window counts as full.

        Raises:
            InvalidInput: the time lies in the future.
        """
        before = parse_instant(before, "before")
        if before > datetime.now(UTC):
            raise InvalidInput("before", "lies in the future; slots that are still to come are not forgotten")
        return await self._store.prune(to_ms(before))
