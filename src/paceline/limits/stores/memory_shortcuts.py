"""Key tables with shortcuts: token buckets and fixed windows.

A single charge on one of them takes a shortcut (`SingleCharge`). The commonest one, one unit on a young key that has
room, takes the fast path (`FastPath`). Both are the reference's arithmetic, written out. The contract suite holds them
to the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from paceline.limits.algorithms import State
from paceline.limits.fast_path import FastPath
from paceline.limits.locks import HELD, SpinLock
from paceline.limits.model import Decision, FixedWindow, Reason, Spec, TokenBucket
from paceline.limits.stores.memory_table import PART_MASK, KeyTable

_OK, _DENIED = Reason.OK, Reason.DENIED

Ticks: TypeAlias = Callable[[], int]
"""A clock, in nanoseconds."""


class SingleCharge(Protocol):
    """Spends on one key of one table; `None` if the slow path must be taken. `create` lets it make new keys."""

    def __call__(self, key: str, cost: int, now_us: int | None = None, create: bool = False) -> Decision | None: ...


class PairTable(KeyTable):
    """States of two numbers, an amount up to `most` and a time. A large table has them in one integer: the time above
    `bits`, the amount below."""

    __slots__ = ("bits", "mask")

    def __init__(self, spec: Spec, max_keys: int, most: int) -> None:
        super().__init__(spec, max_keys)
        self.bits = most.bit_length()
        self.mask = (1 << self.bits) - 1

    def compact(self, packed: Any) -> Any:
        if packed.__class__ is int or len(packed) != 2 or not 0 <= packed[0] <= self.mask:
            return packed
        return packed[1] << self.bits | packed[0]

    def pair(self, packed: Any) -> tuple[int, ...]:
        """The two numbers, or all of a state that has more."""
        return (packed & self.mask, packed >> self.bits) if packed.__class__ is int else packed


class BucketTable(PairTable):
    """Token buckets as `(debt, last)`: the unit is the spec's. With holds in line there are more numbers;
    such a key takes the slow path."""

    __slots__ = ("spend", "spend_one")

    def __init__(self, plan: str, spec: TokenBucket, max_keys: int, lock: SpinLock, clock: Ticks) -> None:
        super().__init__(spec, max_keys, spec.full)
        self.spend = _bucket_spend(self, plan, spec, lock, clock)
        self.spend_one = _bucket_spend_one(self, plan, spec, lock, clock)

    def pack(self, state: State) -> tuple[int, ...]:
        return state[2:]

    def unpack(self, packed: Any) -> State:
        spec = self.spec
        assert isinstance(spec, TokenBucket)
        return (spec.tag, spec.unit, *self.pair(packed))


def _bucket_spend(table: PairTable, plan: str, spec: TokenBucket, lock: SpinLock, clock: Ticks) -> SingleCharge:
    unit, gain, full, capacity = spec.unit, spec.gain, spec.full, spec.capacity
    acquire, release = lock.acquire, lock.release

    def spend(key: str, cost: int, now_us: int | None = None, create: bool = False) -> Decision | None:
        acquire()
        try:
            if now_us is None:
                now_us = clock() // 1000
            state = table.young_state(key, now_us, create)
            if state is None:
                return None
            debt, last = table.pair(state)
            if now_us < last:
                return None
            debt -= (now_us - last) * gain
            if debt < 0:
                debt = 0
            spent = debt + cost * unit
            if spent > full:
                wait, reset = (spent - full + gain - 1) // gain, (debt + gain - 1) // gain
                return Decision((False, (full - debt) // unit, capacity, wait, reset, plan, _DENIED, False, ()))
            table.store(key, (spent, now_us))
        except ValueError:
            return None
        finally:
            release(None)
        reset = (spent + gain - 1) // gain
        return Decision((True, (full - spent) // unit, capacity, 0, reset, plan, _OK, False, ()))

    return spend


def _bucket_spend_one(table: PairTable, plan: str, spec: TokenBucket, lock: SpinLock, clock: Ticks) -> FastPath:
    unit, gain, full, capacity = spec.unit, spec.gain, spec.full, spec.capacity
    bits, mask = table.bits, table.mask
    try_acquire, release, kind, ok = lock.try_acquire, lock.release, Decision, _OK
    short = gain - 1
    of_full = kind((True, capacity - 1, capacity, 0, (unit + short) // gain, plan, ok, False, ()))
    """The decision on a full bucket."""

    def spend_one(key: str) -> Decision | None:
        try:
            try_acquire()
        except BaseException as error:
            if error.__traceback__.tb_next is None and error.args == HELD:  # type: ignore[union-attr]
                return None
            release(None)
            raise
        try:
            now_us = clock() // 1000
            young = table.young
            if young is None:
                part = table.parts[hash(key) & PART_MASK]
                packed = part[key]
                debt, last = packed & mask, packed >> bits
            else:
                debt, last = young[key]
            debt -= (now_us - last) * gain
            if debt > 0:
                spent = debt + unit
                if spent > full:
                    return None
            # Checked here only: a bucket that never fills runs empty, and then the slow path evicts.
            elif now_us >= table.evict_at_us:
                return None
            else:
                spent = unit
            if young is None:
                part[key] = now_us << bits | spent
            else:
                young[key] = (spent, now_us)
        except (KeyError, ValueError, TypeError):
            return None
        finally:
            release(None)
        if spent is unit:
            return of_full
        reset = (spent + short) // gain if short else spent
        return kind((True, (full - spent) // unit, capacity, 0, reset, plan, ok, False, ()))

    return spend_one


class FixedWindowTable(PairTable):
    """Fixed windows as `(used, start)`."""

    __slots__ = ("spend", "spend_one")

    def __init__(self, plan: str, spec: FixedWindow, max_keys: int, lock: SpinLock, clock: Ticks) -> None:
        super().__init__(spec, max_keys, spec.limit)
        self.spend = _fixed_spend(self, plan, spec, lock, clock)
        self.spend_one = _fixed_spend_one(self, plan, spec, lock, clock)

    def pack(self, state: State) -> tuple[int, int]:
        return state[2], state[1]

    def unpack(self, packed: Any) -> State:
        used, start = self.pair(packed)
        return (FixedWindow.tag, start, used)


def _fixed_spend(table: PairTable, plan: str, spec: FixedWindow, lock: SpinLock, clock: Ticks) -> SingleCharge:
    limit, window_us = spec.limit, spec.window_us
    acquire, release = lock.acquire, lock.release

    def spend(key: str, cost: int, now_us: int | None = None, create: bool = False) -> Decision | None:
        acquire()
        try:
            if now_us is None:
                now_us = clock() // 1000
            state = table.young_state(key, now_us, create)
            if state is None:
                return None
            used, start = table.pair(state)
            ends = start + window_us - now_us
            if ends <= 0 or used == 0:
                used, start, ends = 0, now_us, window_us
            elif ends > window_us:
                return None
            spent = used + cost
            if spent > limit:
                return Decision((False, limit - used, limit, ends, ends if used else 0, plan, _DENIED, False, ()))
            table.store(key, (spent, start))
        finally:
            release(None)
        return Decision((True, limit - spent, limit, 0, ends, plan, _OK, False, ()))

    return spend


def _fixed_spend_one(table: PairTable, plan: str, spec: FixedWindow, lock: SpinLock, clock: Ticks) -> FastPath:
    limit, window_us = spec.limit, spec.window_us
    bits, mask = table.bits, table.mask
    try_acquire, release, kind, ok = lock.try_acquire, lock.release, Decision, _OK

    def spend_one(key: str) -> Decision | None:
        try:
            try_acquire()
        except BaseException as error:
            if error.__traceback__.tb_next is None and error.args == HELD:  # type: ignore[union-attr]
                return None
            release(None)
            raise
        try:
            now_us = clock() // 1000
            if now_us >= table.evict_at_us:
                return None
            young = table.young
            if young is None:
                part = table.parts[hash(key) & PART_MASK]
                packed = part[key]
                used, start = packed & mask, packed >> bits
            else:
                used, start = young[key]
            ends = start + window_us - now_us
            if ends <= 0 or not 0 < used < limit:
                return None
            used += 1
            if young is None:
                part[key] = packed + 1
            else:
                young[key] = (used, start)
        except (KeyError, TypeError):
            return None
        finally:
            release(None)
        return kind((True, limit - used, limit, 0, ends, plan, ok, False, ()))

    return spend_one


def key_table_for(plan: str, spec: Spec, max_keys: int, lock: SpinLock, clock: Ticks) -> KeyTable:
    match spec:
        case TokenBucket():
            return BucketTable(plan, spec, max_keys, lock, clock)
        case FixedWindow():
            return FixedWindowTable(plan, spec, max_keys, lock, clock)
        case _:
            return KeyTable(spec, max_keys)
