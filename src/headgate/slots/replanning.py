"""`replan`: moves booked slots, in transactions of bounded time, while booking goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from headgate.durations import LATEST_MS, duration_ms, parse_duration, parse_instant, to_ms
from headgate.errors import Conflict, InvalidInput
from headgate.slots.carriers import SlotMove
from headgate.slots.model import AssignedSlot, PolicyVersion, checked_name
from headgate.slots.occupancy import Occupancy
from headgate.slots.replan import (
    Assignment,
    Candidate,
    Counts,
    Direction,
    Limits,
    assign_earlier,
    assign_spread,
    place,
)
from headgate.slots.windows import align

NOTICE = timedelta(minutes=1)
LONGEST_NOTICE = timedelta(days=3660)
MAX_TRIES = 8
MOST_SPREAD = 1_000_000
"""Slots that one call spreads: the plan is kept in memory."""
PASSES = 5
"""How often a spread is planned again because others booked the places that it meant to use."""
FIRST, FEW, MANY = 2000, 1000, 20_000
TARGET_SECONDS = 0.1
"""How long one transaction may keep a config's bookings waiting."""


class Reading(NamedTuple):
    """Where reading slots goes on: at or behind a time and event."""

    at_ms: int
    event_id: str = ""


class Span(NamedTuple):
    """Which slots of a config are re-planned."""

    name: str
    from_ms: int = 0
    to_ms: int = LATEST_MS
    notice_ms: int = duration_ms(NOTICE)

    def earliest(self, now_ms: int) -> int:
        return max(now_ms + self.notice_ms, self.from_ms)


class Chunk(NamedTuple):
    """What one transaction did."""

    examined: Sequence[AssignedSlot]
    moves: Sequence[SlotMove]
    following: Reading | None
    """Where the next one goes on; None if this was the last."""


class ReplanStore(Protocol):
    """Moves slots with what carries them. Every method that moves is one transaction."""

    async def survey(self, span: Span) -> tuple[PolicyVersion, int]:
        """The config's active version, and the time.

        Raises:
            NotFound: there is no such config.
        """
        ...

    async def pull_forward(self, span: Span, reading: Reading, limit: int) -> Chunk:
        """Moves the next slots to earlier places.

        Raises:
            Conflict: one of them was changed at the same time; nothing was moved, try again.
        """
        ...

    async def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        """The next slots in the order of their times, and whether each may move; those whose work is over are left
        out. Locks nothing."""
        ...

    async def counts(self, span: Span, from_ms: int) -> Occupancy:
        """How full the windows are from a time on, without a lock: for a plan that is checked later, or only shown."""
        ...

    async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> list[SlotMove]:
        """Makes those of these moves to later places that are still possible, and returns them."""
        ...


@dataclass(frozen=True, slots=True)
class Replan:
    """What a re-plan did, or would do."""

    config_name: str
    direction: Direction
    dry_run: bool
    examined: int = 0
    moved: int = 0
    saved_ms: int = 0
    """How much earlier all moved slots are together; negative if they were spread."""
    last_before_ms: int | None = None
    last_after_ms: int | None = None
    joint: int = 0
    """Those of the examined slots that are booked under several configs; they stay."""
    moves: tuple[SlotMove, ...] = ()
    """Of a dry run: what would be moved."""

    def add(self, examined: Sequence[AssignedSlot], moves: Sequence[SlotMove], *, keep: bool = False) -> Replan:
        """With one more chunk."""
        times = {slot.event_id: slot.scheduled_ms for slot in examined}
        after = times | {move.slot.event_id: move.scheduled_ms for move in moves}
        return replace(
            self,
            examined=self.examined + len(examined),
            moved=self.moved + len(moves),
            saved_ms=self.saved_ms + sum(move.slot.scheduled_ms - move.scheduled_ms for move in moves),
            last_before_ms=_latest(self.last_before_ms, times.values()),
            last_after_ms=_latest(self.last_after_ms, after.values()),
            joint=self.joint + sum(bool(slot.other_windows) for slot in examined),
            moves=(*self.moves, *moves) if keep else self.moves,
        )


def span_of(
    config_name: str,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    notice: timedelta | str | None = None,
) -> Span:
    """A checked span.

    Raises:
        InvalidInput: a value is wrong; the error names it as the wire does: `from`, `to`, `notice`.
    """
    first = 0 if since is None else to_ms(parse_instant(since, "from"))
    last = LATEST_MS if until is None else to_ms(parse_instant(until, "to"))
    if last <= first:
        raise InvalidInput("to", "must be after `from`")
    least = NOTICE if notice is None else parse_duration(notice, "notice")
    if not timedelta(0) <= least <= LONGEST_NOTICE:
        raise InvalidInput("notice", "must be from PT0S to P3660D")
    return Span(checked_name(config_name), first, last, duration_ms(least))


def checked_direction(value: str) -> Direction:
    """Raises: InvalidInput: there is no such direction."""
    try:
        return Direction(value)
    except ValueError:
        raise InvalidInput("direction", f"{value!r:.80} is unknown; use {' or '.join(Direction)}") from None


async def replan(store: ReplanStore, span: Span, direction: Direction, *, dry_run: bool) -> Replan:
    """Re-plans the slots of a span.

    Raises:
        InvalidInput: more slots are to be spread than a plan can hold.
        NotFound: there is no such config.
    """
    result = Replan(span.name, direction, dry_run)
    if direction is Direction.SPREAD:
        return await _spread(store, span, result)
    return await _preview(store, span, result) if dry_run else await _pull(store, span, result)


async def _pull(store: ReplanStore, span: Span, result: Replan) -> Replan:
    active, now_ms = await store.survey(span)
    limit = min(FIRST, MANY)
    # From the start of a window: those who are in it make room for those who come.
    reading: Reading | None = Reading(align(span.earliest(now_ms), active.policy.size_ms))
    while reading is not None:
        started = time.perf_counter()
        chunk = await _retried(store, span, reading, limit)
        took = time.perf_counter() - started
        limit = max(FEW, min(MANY, int(limit * min(2.0, TARGET_SECONDS / max(took, 1e-3)))))
        result = result.add(chunk.examined, chunk.moves)
        reading = chunk.following
    return result


async def _retried(store: ReplanStore, span: Span, reading: Reading, limit: int) -> Chunk:
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return await store.pull_forward(span, reading, limit)
        except Conflict:
            if attempt == MAX_TRIES:
                raise
    raise AssertionError("unreachable")


async def _preview(store: ReplanStore, span: Span, result: Replan) -> Replan:
    """`_pull` without a change: what would have been moved is remembered here."""
    active, now_ms = await store.survey(span)
    limits = Limits(active.policy, span.earliest(now_ms))
    size = active.policy.size_ms
    occupancy = await store.counts(span, align(limits.earliest_ms, size))
    reading = Reading(align(limits.earliest_ms, size))
    uniform = random.Random(1).random
    carried: list[Candidate] = []
    reached = reading.at_ms
    while True:
        page = await store.candidates(span, reading, MANY)
        candidates = carried + page
        is_last = len(page) < MANY
        assignments = assign_earlier(limits, candidates, Counts(occupancy), reached)
        kept = whole_windows(assignments, is_last=is_last)
        moves = place(limits, kept, occupancy, uniform).moves
        result = result.add([assignment.candidate.slot for assignment in kept], moves, keep=True)
        if is_last:
            return result
        carried = candidates[len(kept) :]
        reached = assignments[-1].window_ms
        reading = after(page[-1].slot)


async def _spread(store: ReplanStore, span: Span, result: Replan) -> Replan:
    """Plans all moves in order, then makes them from the last one back: room is made before it is taken, so that no
    window holds more than before on the way."""
    for number in range(PASSES):
        active, now_ms = await store.survey(span)
        limits = Limits(active.policy, span.earliest(now_ms))
        candidates = await _all_candidates(store, span, align(limits.earliest_ms, active.policy.size_ms))
        occupancy = await store.counts(span, align(limits.earliest_ms, active.policy.size_ms))
        assignments = assign_spread(limits, candidates, Counts(occupancy))
        moves = place(limits, assignments, occupancy, random.Random().random).moves
        if number == 0:
            result = result.add([candidate.slot for candidate in candidates], [])
        if result.dry_run:
            return _later(result, moves, keep=True)
        if not moves:
            return result
        done = 0
        for last in range(len(moves), 0, -FEW):
            made = await store.push_back(span, moves[max(0, last - FEW) : last])
            done += len(made)
            result = _later(result, made)
        if done == len(moves):
            return result
    return result


def _later(result: Replan, moves: Sequence[SlotMove], *, keep: bool = False) -> Replan:
    added = result.add([], moves, keep=keep)
    return replace(added, last_before_ms=result.last_before_ms)


async def _all_candidates(store: ReplanStore, span: Span, from_ms: int) -> list[Candidate]:
    candidates: list[Candidate] = []
    reading = Reading(from_ms)
    while page := await store.candidates(span, reading, MANY):
        candidates += page
        if len(candidates) > MOST_SPREAD:
            raise InvalidInput("to", f"more than {MOST_SPREAD} slots are to be spread; give an earlier `to`")
        reading = after(page[-1].slot)
    return candidates


def after(slot: AssignedSlot) -> Reading:
    """Right behind a slot: no event's id sorts between its own and this."""
    return Reading(slot.scheduled_ms, slot.event_id + "\x00")


def whole_windows(assignments: list[Assignment], *, is_last: bool) -> list[Assignment]:
    """The assignments to windows of which all members are known: more may come into the last one. If there is but one
    window, it is taken as it is."""
    if is_last or not assignments or assignments[0].window_ms == assignments[-1].window_ms:
        return assignments
    last = assignments[-1].window_ms
    return [assignment for assignment in assignments if assignment.window_ms < last]


def _latest(known: int | None, times: Iterable[int]) -> int | None:
    return max((at for at in (known, *times) if at is not None), default=None)
