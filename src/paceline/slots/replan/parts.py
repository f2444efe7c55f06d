"""Re-plan: slots are pulled forward part by part, in the order of their times. Pure, given a view of the windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.durations import LATEST_MS
from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot
from paceline.slots.replan.assignment import (
    NO_OTHERS,
    Assignment,
    Candidate,
    Limits,
    Others,
    PlannedConfig,
    assign_earlier,
)
from paceline.slots.replan.places import place


class Reading(NamedTuple):
    """Where reading slots continues: at or behind a time and event."""

    at_ms: int
    event_id: str = ""
    until_ms: int = LATEST_MS
    resume_ms: int = 0
    """Slots in [until, resume) need not be read: they were moved away, or booked since."""


def after(slot: AssignedSlot) -> Reading:
    """Right behind a slot: no event's id sorts between its own and this."""
    return Reading(slot.scheduled_ms, slot.event_id + "\x00")


class Part(NamedTuple):
    """Slots whose places are decided, and those of them that move."""

    examined: Sequence[AssignedSlot]
    moves: Sequence[SlotMove]


class Puller:
    """Pulls slots forward, page by page. Slots of a window that more may come into wait for the next page."""

    def __init__(self, limits: Limits, config: PlannedConfig, reading: Reading, others: Others = NO_OTHERS) -> None:
        self._limits = limits
        self._config = config
        self._others = others
        self._waiting: list[Candidate] = []
        self.reading = reading
        """Where the undecided slots begin."""

    def pull(self, candidates: Sequence[Candidate], *, is_last: bool) -> Part:
        """Moves the next candidates as far forward as they go. The occupancies get the changed counts."""
        known = [*self._waiting, *candidates]
        assignments = assign_earlier(self._limits, known, self._config, self.reading.at_ms, self._others)
        kept = whole_windows(assignments, is_last=is_last)
        # Inside a window only if one window holds more slots than a page.
        floor = self.reading.at_ms if self.reading.event_id else 0
        moves = place(self._limits, kept, self._config, floor, self._others)
        self._waiting = known[len(kept) :]
        if assignments:
            until = assignments[-1].window_ms + self._limits.policy.size_ms
            resume = (self._waiting or known[-1:])[0].slot.scheduled_ms
            self.reading = _following(assignments, kept, moves)._replace(until_ms=until, resume_ms=resume)
        return Part([assignment.candidate.slot for assignment in kept], moves)


def broken_off(
    examined: Sequence[AssignedSlot],
    moves: Sequence[SlotMove],
    made: int,
    reading: Reading,
    following: Reading | None,
) -> tuple[Sequence[AssignedSlot], Reading]:
    """Of a plan from `reading` to `following`, of which only the first moves were made: the slots whose places are
    decided, and where the others begin."""
    unmade = moves[made].slot.event_id
    cut = next(index for index, slot in enumerate(examined) if slot.event_id == unmade)
    if not cut:
        return [], reading
    times = {move.slot.event_id: move.scheduled_ms for move in moves[:made]}
    last = examined[cut - 1]
    until = reading.until_ms if following is None else following.until_ms
    resume = min((slot.scheduled_ms for slot in examined[cut:] if slot.scheduled_ms >= until), default=None)
    if resume is None:
        resume = 0 if following is None else following.resume_ms
    at = after(last._replace(scheduled_ms=times.get(last.event_id, last.scheduled_ms)))
    return examined[:cut], at._replace(until_ms=until, resume_ms=resume)


def whole_windows(assignments: list[Assignment], *, is_last: bool) -> list[Assignment]:
    """The assignments to windows of which all members are known: more may come into the last one. If there is but one
    window, it is taken as it is."""
    if is_last or not assignments or assignments[0].window_ms == assignments[-1].window_ms:
        return assignments
    last = assignments[-1].window_ms
    return [assignment for assignment in assignments if assignment.window_ms < last]


def _following(assignments: Sequence[Assignment], kept: Sequence[Assignment], moves: Sequence[SlotMove]) -> Reading:
    if len(kept) < len(assignments):
        return Reading(assignments[-1].window_ms)
    last = kept[-1].candidate.slot
    at = next((move.scheduled_ms for move in reversed(moves) if move.slot.event_id == last.event_id), None)
    return after(last if at is None else last._replace(scheduled_ms=at))
