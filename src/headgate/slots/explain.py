"""Why an event got the time it has. Pure.

A booking takes the earliest open window with room, so what lies between the effective time and the slot's window was
full, closed, or too short in proportion when the slot was booked. So the reasons need not be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.slots.listing import ListedSlot
from headgate.slots.model import FirstWindow, PolicyVersion, WindowPolicy
from headgate.slots.occupancy import Occupancy
from headgate.slots.packing import Full, Packer
from headgate.slots.windows import align, usable

MOST_STEPS = 200
"""Windows and closed stretches that are listed one by one; the rest is counted only."""


class Reason(StrEnum):
    """Why a window was passed over."""

    FULL = "full"
    """It held its limit."""
    PROPORTIONAL = "proportional"
    """It is the window of the requested time, and offered only a share for what was left of it."""
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
    """None: nothing is free before the horizon."""
    earliest_ms: int | None
    """Then the first time that would be free, if any ever is."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an event got its time, and what would happen today."""

    record: ListedSlot
    effective_ms: int
    """The later one of the requested time and the time of the booking."""
    then: PolicyVersion
    active: PolicyVersion
    steps: tuple[Step, ...]
    today: Today


def explain(
    record: ListedSlot, then: PolicyVersion, active: PolicyVersion, occupancy: Occupancy, now_ms: int
) -> Explanation:
    """Explains a slot that was booked under the policy `then`; `occupancy` is how full the windows are now."""
    slot = record.slot
    effective = max(slot.requested_ms, record.created_ms if record.moved_ms is None else record.moved_ms)
    if slot.other_windows:
        steps = _passed_jointly(then.name, then.policy, occupancy, effective, slot.scheduled_ms, Reason.JOINT)
    elif record.moved_ms is None:
        steps = _passed_over(then.name, then.policy, effective, slot.window_start_ms)
    else:
        steps = _passed_jointly(then.name, active.policy, occupancy, effective, slot.scheduled_ms, Reason.ORDER)
    place = Packer(active.policy, occupancy, now_ms, lambda: 0.0).place(slot.requested_ms)
    today = Today(None, place.earliest_ms) if isinstance(place, Full) else Today(place.window_start_ms, None)
    return Explanation(record, effective, then, active, tuple(steps), today)


def _passed_over(name: str, policy: WindowPolicy, effective_ms: int, until_ms: int) -> list[Step]:
    """The windows from the effective time up to the slot's own."""
    size = policy.size_ms
    first = align(effective_ms, size)

    def reason(start: int) -> Reason:
        limit = policy.limit_at(start)
        share = usable(limit, size, start, effective_ms, start + size - 1, policy.first_window).capacity
        is_cut = start == first and share < limit and policy.first_window is FirstWindow.PROPORTIONAL
        return Reason.PROPORTIONAL if is_cut else Reason.FULL

    return _steps(name, policy, first, until_ms, reason, Reason.FULL)


def combined(explanations: Sequence[Explanation]) -> Explanation:
    """The explanation of a slot under several configs, from one of each: the steps of all of them. Today it would get
    no window before the latest that one of them offers by itself."""
    first = explanations[0]
    steps = tuple(step for explanation in explanations for step in explanation.steps)
    starts = [explanation.today.window_start_ms for explanation in explanations]
    times = [explanation.today.earliest_ms for explanation in explanations]
    today = Today(
        None if None in starts else max(start for start in starts if start is not None),
        max((at for at in times if at is not None), default=None),
    )
    return replace(first, steps=steps, today=today)


def _passed_jointly(
    name: str, policy: WindowPolicy, occupancy: Occupancy, effective_ms: int, scheduled_ms: int, otherwise: Reason
) -> list[Step]:
    """The windows up to a slot whose window is not the earliest with room; one that is not full now has the reason
    `otherwise`."""

    def reason(start: int) -> Reason:
        return Reason.FULL if occupancy.taken(start) >= policy.limit_at(start) else otherwise

    size = policy.size_ms
    return _steps(name, policy, align(effective_ms, size), align(scheduled_ms, size), reason, otherwise)


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
