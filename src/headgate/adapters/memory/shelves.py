"""Shelves: the states of one plan and spec, in two generations of keys.

A key that is used moves to the young generation. When a generation has lasted longer than any state of the spec lives,
the old one holds nothing that a missing state would not say as well: it is thrown away, a few keys with every call, so
that no call pays for all of them. A shelf that reaches its bound turns its generations early and lets keys go that
have not been used lately.

A single charge on a token bucket or a fixed window takes a short way (`Spender`), and the commonest of all, one unit
on a key in use that has room, the shortest (`OneSpender`): the reference's arithmetic, written out. The contract suite
holds all ways to the same decisions.

A signal handler may raise within any of them (Ctrl-C, a worker's time limit): see `Turnstile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from headgate.admission.algorithms import State
from headgate.admission.gate import Turnstile
from headgate.admission.model import Decision, FixedWindow, Reason, Spec, TokenBucket

SHORTEST_GENERATION_US = 60_000_000
DROPPED_PER_CALL = 32

_OK, _DENIED = Reason.OK, Reason.DENIED

Ticks: TypeAlias = Callable[[], int]
"""Tells nanoseconds."""

OneSpender: TypeAlias = Callable[[str], Decision | None]
"""Spends one unit on a key that is known and young; `None` if a longer way must be taken, or another thread is just
spending: the longer way waits for it."""


class Spender(Protocol):
    """Spends on one key of one shelf; `None` if the long way must be taken. `born` lets it make new keys."""

    def __call__(self, key: str, cost: int, now_us: int | None = None, born: bool = False) -> Decision | None: ...


class Shelf:
    """The states of one plan and spec, packed, in two generations."""

    __slots__ = ("_drop", "_max_keys", "_span_us", "_turn_at", "alone", "due", "old", "spec", "users", "young")

    def __init__(self, spec: Spec, max_keys: int) -> None:
        self.spec = spec
        self.alone = True
        """Whether this plan has no other shelf, so that a key missing here is missing."""
        self.users = 0
        """How many rules alive have this shelf."""
        self.young: dict[str, Any] = {}
        self.old: dict[str, Any] = {}
        self._drop: dict[str, Any] = {}
        self._max_keys = max_keys
        self._span_us = max(spec.life_us, SHORTEST_GENERATION_US)
        self._turn_at: int | None = None
        self.due = -(2**62)
        """When to keep house next."""

    def __len__(self) -> int:
        """How many states take up memory, also those that wait to be dropped."""
        return len(self.young) + len(self.old) + len(self._drop)

    @property
    def empty(self) -> bool:
        """Whether nothing is left, not even to be dropped."""
        return len(self) == 0

    def read(self, key: str) -> State | None:
        packed = self.young.get(key)
        if packed is None:
            packed = self.old.get(key)
        return None if packed is None else self.unpack(packed)

    def write(self, key: str, state: State, now_us: int) -> None:
        if now_us >= self.due:
            self.keep_house(now_us)
        if key not in self.young:
            self.old.pop(key, None)
            self.make_room()
        self.young[key] = self.pack(state)

    def forget(self, key: str) -> None:
        self.young.pop(key, None)
        self.old.pop(key, None)

    def pack(self, state: State) -> Any:
        return state

    def unpack(self, packed: Any) -> State:
        return packed  # type: ignore[no-any-return]

    def keep_house(self, now_us: int) -> None:
        """Turns the generations when it is time, and drops a few keys of the one before."""
        drop = self._drop
        if self._turn_at is None:
            self._turn_at = now_us + self._span_us
        elif now_us >= self._turn_at and not drop:
            self._drop = drop = self.old
            self.old, self.young = self.young, {}
            self._turn_at = now_us + self._span_us
        for _ in range(min(DROPPED_PER_CALL, len(drop))):
            drop.popitem()
        self.due = now_us if drop else self._turn_at

    def make_room(self) -> None:
        """Lets a key go that has not been used lately, if the shelf is full."""
        if len(self.young) + len(self.old) >= self._max_keys:
            if not self.old:
                self.old, self.young = self.young, {}
                self._turn_at, self.due = None, -(2**62)
            self.old.popitem()

    def young_state(self, key: str, now_us: int, born: bool) -> Any:
        """The packed state of a key, made young; nothing spent as of now if the key may be `born` here; `None` if
        another shelf must be asked first, or the key has yet to be checked."""
        if now_us >= self.due:
            self.keep_house(now_us)
        packed = self.young.get(key)
        if packed is None:
            packed = self.old.pop(key, None)
            if packed is not None:
                self.young[key] = packed
            elif born and self.alone:
                self.make_room()
                packed = (0, now_us)
        return packed


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
