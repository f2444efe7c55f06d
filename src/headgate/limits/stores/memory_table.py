"""Shelves: the states of one plan and spec, in segments by when a key was last used.

A key that is used moves to the young segment. A segment that was closed longer ago than any state of the spec lives
holds nothing that a missing state would not say as well: it is thrown away, a few keys with every call, so that no call
pays for all of them. Time closes the young segment; once a shelf is half full, so does its size. At its bound
a shelf evicts the first keys of the oldest segment: the least recently used, to within a segment.

Exact order would cost every decision (a key that is put last in a `dict` is deleted and inserted) or every key (an
`OrderedDict` takes 100 bytes more).

A single charge on a token bucket or a fixed window takes a short way (`Spender`), and the commonest of all, one unit
on a key in use that has room, the shortest (`OneSpender`): the reference's arithmetic, written out. The contract suite
holds all ways to the same decisions.

A signal handler may raise within any of them (Ctrl-C, a worker's time limit): see `Turnstile`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from headgate.limits.algorithms import State
from headgate.limits.locks import Turnstile
from headgate.limits.model import Decision, FixedWindow, Reason, Spec, TokenBucket

SHORTEST_GENERATION_US = 60_000_000
DROPPED_PER_CALL = 32
SEGMENTS = 16
"""A segment is closed when it holds this part of the keys that are kept at most."""
MOST_SEGMENTS = 24
"""How many older ones are kept apart: keys leave them as they are used, so there are more of them than full ones."""
EVICTED_AT_ONCE = 1024

_OK, _DENIED = Reason.OK, Reason.DENIED

Ticks: TypeAlias = Callable[[], int]
"""Tells nanoseconds."""

OneSpender: TypeAlias = Callable[[str], Decision | None]
"""Spends one unit on a key that is known and young; `None` if a longer way must be taken, or another thread is just
spending: the longer way waits for it."""


class Spender(Protocol):
    """Spends on one key of one shelf; `None` if the long way must be taken. `born` lets it make new keys."""

    def __call__(self, key: str, cost: int, now_us: int | None = None, born: bool = False) -> Decision | None: ...


class _Segment(NamedTuple):
    """Keys that were last used before `closed_us`, in the order in which they came."""

    keys: dict[str, Any]
    closed_us: int


class Shelf:
    """The states of one plan and spec, packed; those of keys in use, and those of keys that were used before."""

    __slots__ = (
        "_drops", "_leaving", "_max_keys", "_older", "_older_count", "_segment", "_span_us", "_turn_at", "alone", "due",
        "spec", "users", "young",
    )  # fmt: skip

    def __init__(self, spec: Spec, max_keys: int) -> None:
        self.spec: Spec | None = spec
        self.alone = True
        """Whether this plan has no other shelf, so that a key missing here is missing."""
        self.users = 0
        """How many rules alive have this shelf."""
        self.young: dict[str, Any] = {}
        self._older: list[_Segment] = []
        """The oldest first."""
        self._older_count = 0
        self._drops: list[dict[str, Any]] = []
        self._leaving: list[str] = []
        """The next keys of the oldest segment to be evicted, last to first; some may have been used since."""
        self._max_keys = max_keys
        self._segment = max(max_keys // SEGMENTS, 1)
        self._span_us = max(spec.life_us, SHORTEST_GENERATION_US)
        self._turn_at: int | None = None
        self.due = -(2**62)
        """When to keep house next."""

    def __len__(self) -> int:
        """How many states take up memory, also those that wait to be dropped."""
        return len(self.young) + self._older_count + sum(map(len, self._drops))

    @property
    def empty(self) -> bool:
        """Whether nothing is left, not even to be dropped."""
        return len(self) == 0

    def read(self, key: str) -> State | None:
        packed = self.young.get(key)
        for keys, _ in self._older if packed is None else ():
            packed = keys.get(key)
            if packed is not None:
                break
        return None if packed is None else self.unpack(packed)

    def write(self, key: str, state: State, now_us: int) -> None:
        if now_us >= self.due:
            self.keep_house(now_us)
        if key not in self.young:
            self._pop_older(key)
            self.make_room(now_us)
        self.young[key] = self.pack(state)

    def touch(self, key: str, now_us: int) -> None:
        """Notes that a key is used, if it is known."""
        if key not in self.young and (packed := self._pop_older(key)) is not None:
            self.make_room(now_us)
            self.young[key] = packed

    def forget(self, key: str) -> None:
        if self.young.pop(key, None) is None:
            self._pop_older(key)

    def pack(self, state: State) -> Any:
        return state

    def unpack(self, packed: Any) -> State:
        return packed  # type: ignore[no-any-return]

    def keep_house(self, now_us: int) -> None:
        """Closes the young segment when it is time, and drops a few keys of those that have outlived theirs."""
        if self._turn_at is None:
            self._turn_at = now_us + self._span_us
        elif now_us >= self._turn_at:
            self._close(now_us)
        while self._older and now_us >= self._older[0].closed_us + self._span_us:
            keys = self._older.pop(0).keys
            self._older_count -= len(keys)
            self._leaving.clear()
            self._drops.append(keys)
        left = DROPPED_PER_CALL
        while self._drops and left:
            drop = self._drops[-1]
            for _ in range(min(left, len(drop))):
                drop.popitem()
                left -= 1
            if not drop:
                self._drops.pop()
        ends = self._older[0].closed_us + self._span_us if self._older else self._turn_at
        self.due = now_us if self._drops else min(self._turn_at, ends)

    def make_room(self, now_us: int) -> None:
        """Prepares for one more young key: closes the segment if it is full, and evicts the key that was not used for
        longest if the shelf is."""
        count = len(self.young) + self._older_count
        if count * 2 >= self._max_keys and len(self.young) >= self._segment:
            self._close(now_us)
        while count >= self._max_keys:
            self._evict(now_us)
            count -= 1

    def young_state(self, key: str, now_us: int, born: bool) -> Any:
        """The packed state of a key, made young; nothing spent as of now if the key may be `born` here; `None` if
        another shelf must be asked first, or the key has yet to be checked."""
        if now_us >= self.due:
            self.keep_house(now_us)
        packed = self.young.get(key)
        if packed is None:
            packed = self._pop_older(key) if self._older else None
            if packed is not None:
                self.make_room(now_us)
                self.young[key] = packed
            elif born and self.alone:
                self.make_room(now_us)
                packed = (0, now_us)
        return packed

    def tables(self) -> list[dict[str, Any]]:
        """All keys, wherever they are."""
        return [self.young, *(keys for keys, _ in self._older), *self._drops]

    def _pop_older(self, key: str) -> Any:
        for keys, _ in self._older:
            packed = keys.pop(key, None)
            if packed is not None:
                self._older_count -= 1
                return packed
        return None

    def _close(self, now_us: int) -> None:
        """Makes the young segment the last of the older ones."""
        self._turn_at = now_us + self._span_us
        self.due = min(self.due, self._turn_at)
        if self.young:
            young, self.young = self.young, {}
            self._older.append(_Segment(young, now_us))
        if len(self._older) > MOST_SEGMENTS:
            self._merge()
        # Not only counted on: a signal handler may have raised between a key's leaving and its being counted.
        self._older_count = sum(len(keys) for keys, _ in self._older)

    def _merge(self) -> None:
        """Makes one segment of the two neighbours that have the fewest keys left."""
        older = self._older
        at = min(range(len(older) - 1), key=lambda place: len(older[place].keys) + len(older[place + 1].keys))
        first, second = older[at], older.pop(at + 1)
        first.keys.update(second.keys)
        older[at] = _Segment(first.keys, second.closed_us)

    def _evict(self, now_us: int) -> None:
        while self._older or self.young:
            if not self._older:
                self._close(now_us)
            oldest = self._older[0].keys
            while self._leaving:
                if oldest.pop(self._leaving.pop(), None) is not None:
                    self._older_count -= 1
                    return
            # A few at a time: the keys that have gone must be passed over each time one looks for the first.
            self._leaving = list(islice(oldest, EVICTED_AT_ONCE))[::-1]
            if not self._leaving:
                del self._older[0]


class MixedShelf(Shelf):
    """The states of many specs, kept for as long as the longest of them needs."""

    __slots__ = ()

    def __init__(self, spec: Spec, max_keys: int) -> None:
        super().__init__(spec, max_keys)
        self.spec = None

    def take_in(self, spec: Spec) -> None:
        """Makes room in time for the states of a further spec."""
        self._span_us = max(self._span_us, spec.life_us)


class BucketShelf(Shelf):
    """Token buckets as `(debt, last)`: the unit is the spec's. With holds in line there are more numbers,
    too many for the short ways: they leave such a key to the long one."""

    __slots__ = ("spend", "spend_one")

    def __init__(self, plan: str, spec: TokenBucket, max_keys: int, gate: Turnstile, clock: Ticks) -> None:
        super().__init__(spec, max_keys)
        self.spend = _bucket_spender(self, plan, spec, gate, clock)
        self.spend_one = _bucket_one_spender(self, plan, spec, gate, clock)

    def pack(self, state: State) -> tuple[int, ...]:
        return state[2:]

    def unpack(self, packed: tuple[int, ...]) -> State:
        spec = self.spec
        assert isinstance(spec, TokenBucket)
        return (spec.tag, spec.unit, *packed)


def _bucket_spender(shelf: Shelf, plan: str, spec: TokenBucket, gate: Turnstile, clock: Ticks) -> Spender:
    unit, gain, full, capacity = spec.unit, spec.gain, spec.full, spec.capacity
    enter, leave = gate.enter, gate.leave

    def spend(key: str, cost: int, now_us: int | None = None, born: bool = False) -> Decision | None:
        enter()
        try:
            if now_us is None:
                now_us = clock() // 1000
            state = shelf.young_state(key, now_us, born)
            if state is None:
                return None
            debt, last = state
            if now_us < last:
                return None
            debt -= (now_us - last) * gain
            if debt < 0:
                debt = 0
            spent = debt + cost * unit
            if spent > full:
                wait, reset = (spent - full + gain - 1) // gain, (debt + gain - 1) // gain
                return Decision((False, (full - debt) // unit, capacity, wait, reset, plan, _DENIED, False, ()))
            shelf.young[key] = (spent, now_us)
        except ValueError:
            return None
        finally:
            leave(None)
        reset = (spent + gain - 1) // gain
        return Decision((True, (full - spent) // unit, capacity, 0, reset, plan, _OK, False, ()))

    return spend


def _bucket_one_spender(shelf: Shelf, plan: str, spec: TokenBucket, gate: Turnstile, clock: Ticks) -> OneSpender:
    unit, gain, full, capacity = spec.unit, spec.gain, spec.full, spec.capacity
    try_enter, leave, kind, ok = gate.try_enter, gate.leave, Decision, _OK
    short = gain - 1

    def spend_one(key: str) -> Decision | None:
        try:
            try_enter()
        except IndexError:
            return None
        except BaseException:
            leave(None)
            raise
        try:
            now_us = clock() // 1000
            young = shelf.young
            debt, last = young[key]
            debt -= (now_us - last) * gain
            if debt <= 0:
                # Looked at here only: a bucket that never fills runs empty, and then the long way looks.
                if now_us >= shelf.due:
                    return None
                debt = 0
            spent = debt + unit
            if spent > full:
                return None
            young[key] = (spent, now_us)
        except (KeyError, ValueError):
            return None
        finally:
            leave(None)
        reset = (spent + short) // gain if short else spent
        return kind((True, (full - spent) // unit, capacity, 0, reset, plan, ok, False, ()))

    return spend_one


class FixedShelf(Shelf):
    """Fixed windows as `(used, start)`."""

    __slots__ = ("spend", "spend_one")

    def __init__(self, plan: str, spec: FixedWindow, max_keys: int, gate: Turnstile, clock: Ticks) -> None:
        super().__init__(spec, max_keys)
        self.spend = _fixed_spender(self, plan, spec, gate, clock)
        self.spend_one = _fixed_one_spender(self, plan, spec, gate, clock)

    def pack(self, state: State) -> tuple[int, int]:
        return state[2], state[1]

    def unpack(self, packed: tuple[int, int]) -> State:
        return (FixedWindow.tag, packed[1], packed[0])


def _fixed_spender(shelf: Shelf, plan: str, spec: FixedWindow, gate: Turnstile, clock: Ticks) -> Spender:
    limit, window_us = spec.limit, spec.window_us
    enter, leave = gate.enter, gate.leave

    def spend(key: str, cost: int, now_us: int | None = None, born: bool = False) -> Decision | None:
        enter()
        try:
            if now_us is None:
                now_us = clock() // 1000
            state = shelf.young_state(key, now_us, born)
            if state is None:
                return None
            used, start = state
            ends = start + window_us - now_us
            if ends <= 0 or used == 0:
                used, start, ends = 0, now_us, window_us
            elif ends > window_us:
                return None
            spent = used + cost
            if spent > limit:
                return Decision((False, limit - used, limit, ends, ends if used else 0, plan, _DENIED, False, ()))
            shelf.young[key] = (spent, start)
        finally:
            leave(None)
        return Decision((True, limit - spent, limit, 0, ends, plan, _OK, False, ()))

    return spend


def _fixed_one_spender(shelf: Shelf, plan: str, spec: FixedWindow, gate: Turnstile, clock: Ticks) -> OneSpender:
    limit, window_us = spec.limit, spec.window_us
    try_enter, leave, kind, ok = gate.try_enter, gate.leave, Decision, _OK

    def spend_one(key: str) -> Decision | None:
        try:
            try_enter()
        except IndexError:
            return None
        except BaseException:
            leave(None)
            raise
        try:
            now_us = clock() // 1000
            if now_us >= shelf.due:
                return None
            young = shelf.young
            used, start = young[key]
            ends = start + window_us - now_us
            if ends <= 0 or not 0 < used < limit:
                return None
            used += 1
            young[key] = (used, start)
        except KeyError:
            return None
        finally:
            leave(None)
        return kind((True, limit - used, limit, 0, ends, plan, ok, False, ()))

    return spend_one


def shelf_for(plan: str, spec: Spec, max_keys: int, gate: Turnstile, clock: Ticks) -> Shelf:
    match spec:
        case TokenBucket():
            return BucketShelf(plan, spec, max_keys, gate, clock)
        case FixedWindow():
            return FixedShelf(plan, spec, max_keys, gate, clock)
        case _:
            return Shelf(spec, max_keys)
