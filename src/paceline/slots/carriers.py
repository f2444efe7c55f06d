"""Slot carriers: work that starts at a slot's time, such as queue items. It moves with its slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from paceline.slots.model import AssignedSlot, SlotWindow


class Standing(StrEnum):
    """How far the work of a slot has come."""

    WAITING = "waiting"
    """It waits for the slot's time, and may be moved."""
    BEGUN = "begun"
    """It has begun, or is locked by another transaction: the slot stays."""
    ENDED = "ended"
    """It is over: the slot stays, and blocks no other."""


class SlotMove(NamedTuple):
    """A slot's new time and window."""

    slot: AssignedSlot
    window_start_ms: int
    """Of the config that was named first."""
    scheduled_ms: int
    windows: tuple[SlotWindow, ...] = ()
    """Of a slot under several configs: all of its windows, in the order in which the configs were named."""


class SlotCarrier(Protocol):
    """Finds, moves and cancels the work of slots, in the transaction that moves or cancels the slots. A move never
    waits for a lock: work that another transaction has locked counts as begun."""

    def standings(self, within: Any, slots: Sequence[AssignedSlot], *, lock: bool) -> dict[str, Standing]:
        """How far the work of these slots has come, by event; a slot without work is not in it. With `lock`, work that
        waits stays as it is until the transaction ends."""
        ...

    def known(self, within: Any, slots: Sequence[AssignedSlot]) -> set[str]:
        """Those of these slots' events that have work, however far it has come."""
        ...

    def move(self, within: Any, moves: Sequence[SlotMove], now: datetime) -> None:
        """Gives work that waits the new time of its slot."""
        ...

    def cancel(self, within: Any, slot: AssignedSlot) -> None:
        """Cancels the work of a slot that is about to be given back. Waits for the locks of the work; the slot's own
        are not held yet.

        Raises:
            SlotInUse: the work has begun, or its application must cancel it.
        """
        ...


Carriers = Mapping[str | None, SlotCarrier]
"""By the owner of the slots that they carry; None for slots that belong to no application."""
