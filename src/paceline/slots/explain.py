"""Why an event got the time it has. Pure.

A booking takes the earliest open window with room, so what lies between the effective time and the slot's window was
full, closed, or too short in proportion when the slot was booked. So the reasons need not be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline.durations import to_ms
from paceline.slots.booking.packer import Full, Packer, Side
from paceline.slots.listing import ListedSlot
from paceline.slots.model import FirstWindow, PolicyVersion, WindowPolicy
from paceline.slots.occupancy import MAX_TIMES, WindowReader
from paceline.slots.windows import align, usable

MOST_STEPS = 200
"""Windows and closed stretches that are listed one by one; the rest is counted only."""
COUNTED_AT_ONCE = 64
"""Windows whose slots are counted by one statement, where their counters are gone."""


class Reason(StrEnum):
    """Why a window was passed over."""

    FULL = "full"
    """It held its limit."""
    PROPORTIONAL = "proportional"
    """It is the window of the requested time, and its rest had its share of the limit, or it held the limit."""
    CLOSED = "closed"
    """The calendar closes it, or a part of it."""
    JOINT = "joint"
    """The event has several configs, and no instant of the window suited all of them."""
    ORDER = "order"
    """A re-plan moved the slot, and keeps the order of slots and its notice."""


@dataclass(frozen=True, slots=True)
class Step:
    """A window, or several in a row, that a slot was not put into."""

    config_name: str
    window_start_ms: int
    reason: Reason
    rule: str | None = None
    """The calendar's rule that closes the windows: `open`, `holidays` or `blackouts`."""
    windows: int = 1
    """How many windows in a row were passed over for this reason."""


@dataclass(frozen=True, slots=True)
class Today:
    """What the same request would get if it came now as a new event."""

    window_start_ms: int | None
    """The window of the first config. None: nothing is free before the horizon."""
    earliest_ms: int | None
    """Then the first time that would be free, if any ever is."""


@dataclass(frozen=True, slots=True)
class RemovedVersion:
    """A version of a config that a slot was booked under and that no longer exists: the config was made from a
    template, and was deleted when it was idle."""

    config_name: str
    config_version: int
    config_exists: bool
    """Whether there is a config of this name again."""
    template: str | None
    """The template whose version of the same number has the policy. None: the policy is not known, and the steps have
    no windows of this config."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an event got its time, and what would happen today."""

    record: ListedSlot
    effective_ms: int
    """The later one of the requested time and the time of the booking."""
    then: PolicyVersion | None
    """The version that the slot was booked under, of its first config. None: it is not known."""
    active: PolicyVersion
    """The version that a booking would have today, of its first config."""
    steps: tuple[Step, ...]
    today: Today
    removed: tuple[RemovedVersion, ...] = ()


def explain(
    record: ListedSlot,
    then: Mapping[str, PolicyVersion],
    removed: Sequence[RemovedVersion],
    sides: Sequence[Side],
    now_ms: int,
) -> Explanation:
    """Explains a slot that was booked under the policies `then`, by config, of which those of `removed` no longer
    exist; `sides` are its configs as they are now. The counts that it takes from them must not be written back."""
    slot = record.slot
    booked = record.created_ms if record.moved_ms is None else record.moved_ms
    effective = max(slot.requested_ms, booked)
    otherwise = Reason.JOINT if slot.other_windows else Reason.ORDER
    gone = {version.config_name for version in removed}
    steps: list[Step] = []
    for side in sides:
        version = then.get(side.active.name)
        if version is None:
            continue
        if record.moved_ms is None and not slot.other_windows:
            steps += _passed_over(version, effective, slot.window_start_ms)
            continue
        taken = side.occupancy.taken
        is_active = version.version == side.active.version and version.name not in gone
        if not is_active or to_ms(version.created_at) > booked:
            # Resized, or evicted and maybe made again: the counters of these windows are gone.
            taken = _Recount(side.occupancy.reader, version.policy.size_ms).taken
        steps += _passed_with_room(version, taken, side.occupancy.reader, effective, slot.scheduled_ms, otherwise)
    today = _today(sides, slot.requested_ms, now_ms)
    return Explanation(
        record, effective, then.get(slot.config_name), sides[0].active, tuple(steps), today, tuple(removed)
    )


def _today(sides: Sequence[Side], requested_ms: int, now_ms: int) -> Today:
    place = Packer(sides, now_ms, lambda: 0.0).place(requested_ms)
    return Today(None, place.earliest_ms) if isinstance(place, Full) else Today(place.window_start_ms, None)


def _first_share(policy: WindowPolicy, effective_ms: int) -> int | None:
    """What the rest of the effective time's window may hold; None if that is the limit."""
    size, start = policy.size_ms, align(effective_ms, policy.size_ms)
    limit = policy.limit_at(start)
    share = usable(limit, size, start, effective_ms, start + size - 1, policy.first_window).capacity
    return share if share < limit and policy.first_window is FirstWindow.PROPORTIONAL else None


def _passed_over(version: PolicyVersion, effective_ms: int, until_ms: int) -> list[Step]:
    """The windows from the effective time up to the slot's own."""
    policy = version.policy
    first = align(effective_ms, policy.size_ms)
    is_cut = _first_share(policy, effective_ms) is not None

    def reason(start: int) -> Reason:
        return Reason.PROPORTIONAL if is_cut and start == first else Reason.FULL

    return _steps(version.name, policy, first, until_ms, reason, Reason.FULL)


def _passed_with_room(
    version: PolicyVersion,
    taken: Callable[[int], int],
    reader: WindowReader,
    effective_ms: int,
    scheduled_ms: int,
    otherwise: Reason,
) -> list[Step]:
    """The windows up to a slot whose window is not the earliest with room. One that has room, by the slots that are
    `taken` there now, has the reason `otherwise`."""
    policy = version.policy
    size = policy.size_ms
    first = align(effective_ms, size)
    share = _first_share(policy, effective_ms)

    def reason(start: int) -> Reason:
        if taken(start) >= policy.limit_at(start):
            return Reason.FULL
        if share is not None and start == first:
            looked_at = min(share, MAX_TIMES)
            if len(reader.times(effective_ms, start + size, looked_at)) >= looked_at:
                return Reason.PROPORTIONAL
        return otherwise

    return _steps(version.name, policy, first, align(scheduled_ms, size), reason, otherwise)


class _Recount:
    """The slots in windows of a size that has no counters, counted when needed."""

    def __init__(self, reader: WindowReader, size_ms: int) -> None:
        self._reader = reader
        self._size_ms = size_ms
        self._counts: dict[int, int] = {}
        self._until_ms = 0

    def taken(self, start_ms: int) -> int:
        """The number of slots in the window. Windows must be asked for in order."""
        if start_ms >= self._until_ms:
            self._until_ms = start_ms + COUNTED_AT_ONCE * self._size_ms
            counts = self._reader.recounted(self._size_ms, start_ms, self._until_ms)
            self._counts = {start: taken for start, taken, _ in counts}
        return self._counts.get(start_ms, 0)


def _steps(
    name: str,
    policy: WindowPolicy,
    start: int,
    until_ms: int,
    reason: Callable[[int], Reason],
    reason_of_rest: Reason,
) -> list[Step]:
    """The windows of [start, until_ms): closed ones by their rules, open ones by `reason`. Those beyond `MOST_STEPS`
    are one step."""
    steps: list[Step] = []
    while start < until_ms:
        opening = min(policy.next_open(start), until_ms)
        if opening > start:
            _add_closed(steps, name, policy, start, opening)
            start = opening
        elif len(steps) >= MOST_STEPS:
            start += _add_rest(steps, name, policy, start, until_ms, reason_of_rest)
        else:
            steps.append(Step(name, start, reason(start)))
            start += policy.size_ms
    return steps


def _add_closed(steps: list[Step], name: str, policy: WindowPolicy, start: int, opening: int) -> None:
    """The closed windows of [start, opening), by the rule that closes them."""
    assert policy.calendar is not None
    size = policy.size_ms
    while start < opening:
        rule = policy.calendar.closing_rule(start, size)
        low, high = 1, (opening - start) // size
        # Rules close long stretches: the end is found by bisection. It may miss a short stretch of another rule in
        # between, which is closed, too.
        while low < high:
            middle = (low + high + 1) // 2
            if policy.calendar.closing_rule(start + (middle - 1) * size, size) == rule:
                low = middle
            else:
                high = middle - 1
        steps.append(Step(name, start, Reason.CLOSED, rule, max(low, 1)))
        start += max(low, 1) * size


def _add_rest(steps: list[Step], name: str, policy: WindowPolicy, start: int, until_ms: int, reason: Reason) -> int:
    """The windows from here on, while it is open; all of them if there are too many stretches to list. Returns how long
    they are."""
    end = until_ms
    if policy.calendar is not None and len(steps) < 2 * MOST_STEPS:
        end = min(until_ms, policy.calendar.open_until(start))
    count = max(1, (end - start) // policy.size_ms)
    steps.append(Step(name, start, reason, None, count))
    return count * policy.size_ms
