"""The arithmetic of admission: the one reference every store must agree with, to the microsecond.

A state is a small tuple of integers that starts with its spec's `tag`; what is missing, or carries another tag, is as
new, so an algorithm can be changed under live keys. Time is integer microseconds and is given. Every function is pure.

    at(spec, state, now)      the state brought forward to `now`: refilled, rolled over, cut to a lowered limit
    at_opened(…)              the same, for a window that an application opened before its first use
    room(spec, view, now, n)  what is left, how long until `n` fits, how long until as new
    take(spec, view, now, n)  the state after `n` more were spent
    give(spec, view, n)       the state after a refund of `n` whose time is unknown
    hold(spec, view, n)       the state after the `n` just taken were taken to be held, and their place in it
    release(spec, view, n, actual, place)  the state after `n` held there turned out to be `actual`, or more

`docs/explanation/admission.md` states the same arithmetic in prose, for translations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from paceline.limits.calendar_edges import Edges
from paceline.limits.specs import (
    MOST,
    CalendarWindow,
    Concurrency,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)

State: TypeAlias = tuple[int, ...]

Place: TypeAlias = tuple[int, int]
"""Where in a state a held cost is: a time, and for a bucket how far back in line."""


Offer: TypeAlias = tuple[int, int, int]
"""The fields of a `Room`, bare."""


class Room(NamedTuple):
    """What a view offers: whole units left; microseconds until the cost fits (0: it does) and until it is as new."""

    remaining: int
    retry_after_us: int
    reset_after_us: int


def at(spec: Spec, state: State | None, now_us: int) -> State:
    """The state as of `now_us`.

    A clock that went back stands still for the key until it has caught up; if that would take longer than a state
    lives, the key counts as spent as of now. So a clock that goes back never grants anything, nor locks a key for long.
    """
    if state is None or state[0] != spec.tag:
        return ARITHMETIC[spec.tag].new(spec, now_us)
    return ARITHMETIC[spec.tag].at(spec, state, now_us)


def at_opened(spec: Spec, state: State | None, now_us: int) -> State:
    """`at`, except that a fixed window which was opened and not used yet stays open until its own end.

    For applications that open a window themselves, when a user is configured: `at` would move an unused window to now.
    """
    opened = state is not None and state[0] == spec.tag and isinstance(spec, FixedWindow) and state[2] == 0
    if opened and state is not None and 0 <= now_us - state[1] < spec.life_us:
        return state
    return at(spec, state, now_us)


def room(spec: Spec, view: State, now_us: int, cost: int) -> Room:
    """What `view` (made by `at` for the same `now_us`) offers to a cost of at most `spec.size`."""
    return Room(*ARITHMETIC[spec.tag].room(spec, view, now_us, cost))


def take(spec: Spec, view: State, now_us: int, cost: int) -> State:
    """`view` with `cost` more spent, whether it fits or not; what does not fit is cut at the limit."""
    return ARITHMETIC[spec.tag].take(spec, view, now_us, cost)


def give(spec: Spec, view: State, cost: int) -> State:
    """`view` with `cost` given back, at most what it has spent.

    The time it was taken is unknown. A log drops its oldest entries, which would expire first; other algorithms reduce
    their present count.
    """
    return ARITHMETIC[spec.tag].give(spec, view, cost)


def hold(spec: Spec, view: State, cost: int) -> tuple[State, Place]:
    """`view`, to which `cost` was just taken, with that cost held: the state, and the place to find the hold again."""
    return ARITHMETIC[spec.tag].hold(spec, view, cost)


def release(spec: Spec, view: State, held: int, actual: int, place: Place) -> State:
    """`view` with `held` units no longer held and all but `actual` of them given back, as far as they still count.

    What is left is at least what would be spent had `actual` been taken in the first place: so no release, however
    late, admits more than the limit of other work.
    """
    return ARITHMETIC[spec.tag].release(spec, view, held, actual, place)


def renew(spec: Concurrency, view: State, now_us: int, held: int, place: Place) -> State | None:
    """`view` with the `held` places of `place` renewed as of now; `None` if they have expired and there is no room.

    A holder that still has its places keeps them, even if the limit was lowered below what is in flight.
    """
    if any(view[index] == place[0] and view[index + 1] >= held for index in range(1, len(view), 2)):
        view = _log_release(spec, view, held, 0, place)
    elif sum(view[2::2]) + held > spec.limit:
        return None
    return _log_append(view, now_us, held)


def stranded(spec: Spec, state: State, now_us: int) -> bool:
    """Whether the clock was set back so far that this state lies further ahead than any state of `spec` lives.

    A state with nothing spent is as new whatever its time.
    """
    return state[0] == spec.tag and ARITHMETIC[spec.tag].instant(state) - now_us > spec.life_us


def life_us(spec: Spec, state: State, now_us: int) -> int:
    """Microseconds from `now_us` after which a stored state says no more than a missing one would; at least 1."""
    return max(room(spec, at(spec, state, now_us), now_us, 1).reset_after_us, 1)


# Token bucket: (tag, unit, debt, last), and if holds may still give something back (…, born, end, paid). The debt is
# what is missing from a full bucket, in ticks, as of `last`: a raised capacity therefore adds room at once.
#
# Held ticks stand in a line, in the order they were taken, numbered from 0 as of `born`; `end` is the next number. The
# first `paid` of them can no longer be given back: the refill has paid for them, or may have. No more ticks wait in
# line than there is debt; so a hold that gives back its ticks in line leaves at least the debt there would be without
# it. A settled hold leaves the line if it is last; else its place stays until it counts as paid.


def _in_line(lent: State, debt: int) -> State:
    """A line, as of this debt; nothing if all of it is paid."""
    if not lent:
        return ()
    born, end, paid = lent
    paid = max(paid, end - debt)
    return (born, end, paid) if paid < end else ()


def _bucket_new(spec: TokenBucket, now_us: int) -> State:
    return (1, spec.unit, 0, now_us)


def _bucket_at(spec: TokenBucket, state: State, now_us: int) -> State:
    unit, debt, last = state[1:4]
    lent = state[4:]
    if unit != spec.unit:
        # Another rate: whole tokens carry over, a begun token counts as spent. Cut first, so the product stays small.
        debt = min(-(-debt // unit), spec.capacity) * spec.unit
        lent = ()
    debt = min(debt, spec.full)
    elapsed = now_us - last
    if elapsed >= spec.life_us or debt == 0:
        return (1, spec.unit, 0, now_us)
    if elapsed >= 0:
        debt, last = max(debt - elapsed * spec.gain, 0), now_us
    elif -elapsed > spec.life_us:
        return (1, spec.unit, spec.full, now_us)
    return (1, spec.unit, debt, last, *_in_line(lent, debt))


def _bucket_room(spec: TokenBucket, view: State, now_us: int, cost: int) -> Offer:
    unit, debt, last = view[1:4]
    behind = last - now_us
    missing = debt + cost * unit - spec.full
    retry = behind - (-missing // spec.gain) if missing > 0 else 0
    return (spec.full - debt) // unit, retry, behind - (-debt // spec.gain)


def _bucket_take(spec: TokenBucket, view: State, now_us: int, cost: int) -> State:
    unit, debt, last = view[1:4]
    return (1, unit, min(debt + cost * unit, spec.full), last, *view[4:])


def _bucket_give(spec: TokenBucket, view: State, cost: int) -> State:
    unit, debt, last = view[1:4]
    debt = max(debt - cost * unit, 0)
    return (1, unit, debt, last, *_in_line(view[4:], debt))


def _bucket_hold(spec: TokenBucket, view: State, cost: int) -> tuple[State, Place]:
    unit, debt, last = view[1:4]
    born, end, paid = view[4:] or (last, 0, 0)
    if end > MOST:
        born, end, paid = last, 0, 0
    end += cost * unit
    return (1, unit, debt, last, born, end, paid), (born, end)


def _bucket_release(spec: TokenBucket, view: State, held: int, actual: int, place: Place) -> State:
    unit, debt, last = view[1:4]
    lent = view[4:]
    if not lent or lent[0] != place[0]:
        return view
    born, end, paid = lent
    back = max(min((held - actual) * unit, place[1] - paid), 0)
    if place[1] == end:
        end -= held * unit
    debt -= back
    return (1, unit, debt, last, *_in_line((born, end, paid), debt))


def _bucket_instant(state: State) -> int:
    return state[3] if state[2] else 0


# Fixed window: (tag, start, used). A window that has not been used has not begun.


def _fixed_new(spec: FixedWindow, now_us: int) -> State:
    return (2, now_us, 0)


def _fixed_at(spec: FixedWindow, state: State, now_us: int) -> State:
    _, start, used = state
    elapsed = now_us - start
    if elapsed >= spec.window_us or used == 0:
        return (2, now_us, 0)
    if -elapsed > spec.life_us:
        return (2, now_us, spec.limit)
    return (2, start, min(used, spec.limit))


def _fixed_room(spec: FixedWindow, view: State, now_us: int, cost: int) -> Offer:
    _, start, used = view
    ends = start + spec.window_us - now_us
    return spec.limit - used, ends if used + cost > spec.limit else 0, ends if used else 0


def _fixed_take(spec: FixedWindow, view: State, now_us: int, cost: int) -> State:
    tag, start, used = view
    return (tag, start, min(used + cost, spec.limit))


def _fixed_give(spec: FixedWindow, view: State, cost: int) -> State:
    tag, start, used = view
    return (tag, start, max(used - cost, 0))


def _fixed_hold(spec: FixedWindow, view: State, cost: int) -> tuple[State, Place]:
    return view, (view[1], 0)


def _fixed_release(spec: FixedWindow, view: State, held: int, actual: int, place: Place) -> State:
    return _fixed_give(spec, view, max(held - actual, 0)) if view[1] == place[0] else view


def _fixed_instant(state: State) -> int:
    return state[1] if state[2] else 0


# Calendar window: (tag, start, used). The edges around now say which window it is. A state whose window begins later
# than now's is one from before the clock went back: it stays, and ends at the edge that follows it.


def _calendar_window(edges: Edges, now_us: int) -> int:
    """The start of the window that `now_us` is in."""
    first, second, third = edges
    return first if now_us < second else second if now_us < third else third


def _calendar_end(edges: Edges, start: int) -> int:
    first, second, third = edges
    return second if start <= first else third if start <= second else start + third - second


def _calendar_new(spec: CalendarWindow, now_us: int) -> State:
    return (5, _calendar_window(spec.edges(now_us), now_us), 0)


def _calendar_at(spec: CalendarWindow, state: State, now_us: int) -> State:
    _, start, used = state
    window = _calendar_window(spec.edges(now_us), now_us)
    if used == 0 or start < window:
        return (5, window, 0)
    if start - now_us > spec.life_us:
        return (5, window, spec.limit)
    return (5, start, min(used, spec.limit))


def _calendar_room(spec: CalendarWindow, view: State, now_us: int, cost: int) -> Offer:
    _, start, used = view
    ends = _calendar_end(spec.edges(now_us), start) - now_us
    return spec.limit - used, ends if used + cost > spec.limit else 0, ends if used else 0


# Sliding window: (tag, start, before, used). `before` is the last window's count; it weighs by the grains of the last
# window still in view, rounded up to whole units.


def _sliding_new(spec: SlidingWindow, now_us: int) -> State:
    return (3, now_us, 0, 0)


def _sliding_at(spec: SlidingWindow, state: State, now_us: int) -> State:
    _, start, before, used = state
    before, used = min(before, spec.limit), min(used, spec.limit)
    elapsed = now_us - start
    if elapsed >= spec.window_us:
        start, before, used = start + spec.window_us, used, 0
        elapsed -= spec.window_us
    if elapsed >= spec.window_us or before == used == 0:
        return (3, now_us, 0, 0)
    if -elapsed > spec.life_us:
        return (3, now_us, 0, spec.limit)
    return (3, start, before, used)


def _sliding_room(spec: SlidingWindow, view: State, now_us: int, cost: int) -> Offer:
    _, start, before, used = view
    elapsed = max(now_us - start, 0)
    in_view = spec.grains - elapsed // spec.grain_us
    left = max(spec.limit - used - -(-before * in_view // spec.grains), 0)
    ends = start + spec.window_us
    retry = 0
    if cost > left:
        free = spec.limit - used - cost
        moment = min(start + _leaves(spec, before, free), ends) if free >= 0 and before > 0 else ends
        if moment == ends:
            # In the next window `used` is what lies before.
            moment += min(_leaves(spec, used, spec.limit - cost), spec.window_us) if used else 0
        retry = moment - now_us
    reset = (ends + spec.window_us if used else ends if before else now_us) - now_us
    return left, retry, reset


def _leaves(spec: SlidingWindow, before: int, free: int) -> int:
    """Microseconds into a window until no more than `free` of `before` are in view."""
    return max(spec.grains - free * spec.grains // before, 0) * spec.grain_us


def _sliding_take(spec: SlidingWindow, view: State, now_us: int, cost: int) -> State:
    tag, start, before, used = view
    return (tag, start, before, min(used + cost, spec.limit))


def _sliding_give(spec: SlidingWindow, view: State, cost: int) -> State:
    tag, start, before, used = view
    rest = max(cost - used, 0)
    return (tag, start, max(before - rest, 0), max(used - cost, 0))


def _sliding_hold(spec: SlidingWindow, view: State, cost: int) -> tuple[State, Place]:
    return view, (view[1], 0)


def _sliding_release(spec: SlidingWindow, view: State, held: int, actual: int, place: Place) -> State:
    tag, start, before, used = view
    back = max(held - actual, 0)
    if start == place[0]:
        return (tag, start, before, max(used - back, 0))
    if start == place[0] + spec.window_us:
        return (tag, start, max(before - back, 0), used)
    return view


def _sliding_instant(state: State) -> int:
    return state[1] if state[2] or state[3] else 0


# Sliding log: (tag, time, cost, time, cost, ...), oldest first. A call made at t counts in [t, t + window). With a
# precision, an entry's time is a grain later, and the calls until then share it: none counts too short. Places of a
# concurrency limit are the same, with the time after which they expire for the window.


def _log_new(spec: SlidingLog | Concurrency, now_us: int) -> State:
    return (spec.tag,)


def _log_at(spec: SlidingLog | Concurrency, state: State, now_us: int) -> State:
    if len(state) > 1 and state[-2] - now_us > spec.life_us:
        return (spec.tag, now_us, spec.limit)
    since = now_us - spec.window_us
    first = 1
    while first < len(state) and state[first] <= since:
        first += 2
    return state if first == 1 else (spec.tag, *state[first:])


def _log_room(spec: SlidingLog | Concurrency, view: State, now_us: int, cost: int) -> Offer:
    used = sum(view[2::2])
    retry = 0
    excess = used + cost - spec.limit
    if excess > 0:
        retry = spec.window_us  # what never fits, if no entry leaves enough
        for index in range(1, len(view), 2):
            excess -= view[index + 1]
            if excess <= 0:
                retry = view[index] + spec.window_us - now_us
                break
    reset = view[-2] + spec.window_us - now_us if len(view) > 1 else 0
    return max(spec.limit - used, 0), retry, reset


def _log_take(spec: SlidingLog | Concurrency, view: State, now_us: int, cost: int) -> State:
    cost = min(cost, spec.limit - sum(view[2::2]))
    return _log_append(view, now_us, cost, spec.grain_us) if cost > 0 else view


def _log_append(view: State, now_us: int, cost: int, grain_us: int = 1) -> State:
    if len(view) > 1 and view[-2] >= now_us:
        return (*view[:-1], view[-1] + cost)
    return (*view, now_us + grain_us - 1, cost)


def _log_give(spec: SlidingLog | Concurrency, view: State, cost: int) -> State:
    first = 1
    while first < len(view) and view[first + 1] <= cost:
        cost -= view[first + 1]
        first += 2
    if first == len(view):
        return (spec.tag,)
    return (spec.tag, view[first], view[first + 1] - cost, *view[first + 2 :])


def _log_hold(spec: SlidingLog | Concurrency, view: State, cost: int) -> tuple[State, Place]:
    return view, (view[-2], 0)


def _log_release(spec: SlidingLog | Concurrency, view: State, held: int, actual: int, place: Place) -> State:
    for index in range(1, len(view), 2):
        if view[index] == place[0]:
            left = max(view[index + 1] - max(held - actual, 0), 0)
            return (*view[:index], *((place[0], left) if left else ()), *view[index + 2 :])
    return view


def _log_instant(state: State) -> int:
    return state[-2] if len(state) > 1 else 0


class Arithmetic(NamedTuple):
    """One algorithm's functions."""

    new: Callable[[Any, int], State]
    at: Callable[[Any, State, int], State]
    room: Callable[[Any, State, int, int], Offer]
    take: Callable[[Any, State, int, int], State]
    give: Callable[[Any, State, int], State]
    hold: Callable[[Any, State, int], tuple[State, Place]]
    release: Callable[[Any, State, int, int, Place], State]
    instant: Callable[[State], int]
    """The latest time a state names; 0 if nothing is spent in it."""


_LOG = Arithmetic(_log_new, _log_at, _log_room, _log_take, _log_give, _log_hold, _log_release, _log_instant)

ARITHMETIC = {
    # By tag.
    TokenBucket.tag: Arithmetic(
        _bucket_new,
        _bucket_at,
        _bucket_room,
        _bucket_take,
        _bucket_give,
        _bucket_hold,
        _bucket_release,
        _bucket_instant,
    ),
    FixedWindow.tag: Arithmetic(
        _fixed_new, _fixed_at, _fixed_room, _fixed_take, _fixed_give, _fixed_hold, _fixed_release, _fixed_instant
    ),
    CalendarWindow.tag: Arithmetic(
        _calendar_new,
        _calendar_at,
        _calendar_room,
        _fixed_take,
        _fixed_give,
        _fixed_hold,
        _fixed_release,
        _fixed_instant,
    ),
    SlidingWindow.tag: Arithmetic(
        _sliding_new,
        _sliding_at,
        _sliding_room,
        _sliding_take,
        _sliding_give,
        _sliding_hold,
        _sliding_release,
        _sliding_instant,
    ),
    SlidingLog.tag: _LOG,
    Concurrency.tag: _LOG,  # entries leave when they expire
}
