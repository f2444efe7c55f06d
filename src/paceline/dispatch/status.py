"""The status machine of a queued item: one table, from which everything else follows.

READY ──▶ CLAIMED ──▶ DISPATCHED ──▶ COMPLETED
  ▲          │             │
  ├──────────┤◀────────────┤           given back unrun: failed start, stale claim, lost execution
  │          └──▶ FAILED ◀─┘           passed through, never rested in: the same write goes on to …
  ├───────────────┘ └──▶ DEAD_LETTER   … READY while retries are left, DEAD_LETTER when they are used up
  └──────── requeue ────────┘
READY, DEAD_LETTER ──▶ CANCELLED       discarded by an operator
CLAIMED, DISPATCHED ─▶ CANCELLED       called off by its application, which knows that it has not begun
CLAIMED, DISPATCHED ─▶ UNKNOWN         it began, and nobody knows how it ended; held until somebody resolves it:
UNKNOWN ─▶ COMPLETED, READY, DEAD_LETTER, CANCELLED
READY, DEAD_LETTER ──▶ COMPLETED       while an attempt is in doubt: resolved, as those that are held; READY then also
                                       becomes a DEAD_LETTER
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

from paceline.errors import Conflict


class Status(StrEnum):
    """The status of an item."""

    READY = "READY"
    """Waits for its time."""
    CLAIMED = "CLAIMED"
    """Claimed by a dispatcher that has not reported the start yet."""
    DISPATCHED = "DISPATCHED"
    """An engine has it: it runs, or waits there for its start delay."""
    COMPLETED = "COMPLETED"
    """Its execution succeeded. Final; the context is deleted."""
    FAILED = "FAILED"
    """Its execution failed. Passed through on the way to READY or DEAD_LETTER."""
    UNKNOWN = "UNKNOWN"
    """An attempt began, and nobody knows its effect. Nothing is repeated until it is resolved, or its hold ends."""
    DEAD_LETTER = "DEAD_LETTER"
    """Out of retries, or never able to run. An operator requeues or discards it."""
    CANCELLED = "CANCELLED"
    """Discarded by an operator. Final; the context is deleted."""


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.READY: frozenset({Status.CLAIMED, Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED}),
    # An outcome may overtake the record of its own start, so CLAIMED ends as DISPATCHED does.
    Status.CLAIMED: frozenset(
        {
            Status.DISPATCHED,
            Status.READY,
            Status.COMPLETED,
            Status.FAILED,
            Status.UNKNOWN,
            Status.DEAD_LETTER,
            Status.CANCELLED,
        }
    ),
    Status.DISPATCHED: frozenset({Status.READY, Status.COMPLETED, Status.FAILED, Status.UNKNOWN, Status.CANCELLED}),
    Status.UNKNOWN: frozenset({Status.READY, Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED}),
    Status.FAILED: frozenset({Status.READY, Status.DEAD_LETTER}),
    Status.DEAD_LETTER: frozenset({Status.READY, Status.COMPLETED, Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.CANCELLED: frozenset(),
}

IN_FLIGHT = (Status.CLAIMED, Status.DISPATCHED)
"""Held by a claim: only the holder of its epoch may change it."""
FINISHED = (Status.COMPLETED, Status.CANCELLED)
"""Final; retention may delete it."""


def may(before: Status, after: Status) -> bool:
    """Whether the table allows the step."""
    return after in TRANSITIONS[before]


def checked_step(before: Status, after: Status) -> Status:
    """`after`, or `Conflict` if the table does not allow the step."""
    if not may(before, after):
        raise Conflict(f"an item that is {before} can't become {after}")
    return after


@lru_cache
def origins(path: tuple[Status, ...]) -> tuple[Status, ...]:
    """The statuses in flight from which `path`, a chain of steps made in one write, may start."""
    for before, after in pairwise(path):
        checked_step(before, after)
    allowed = tuple(status for status in IN_FLIGHT if may(status, path[0]))
    if not allowed:
        raise Conflict(f"an item in flight can't become {path[0]}")
    return allowed
