"""Limits in memory for threads that run at the same time: a Python without the GIL.

Each key belongs to one of a few memory stores, by its hash, so threads that decide on different keys seldom wait for
each other, nor for the reference counts of the objects that a store consists of. A chain of keys of several shards is
decided while the locks of all of them are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from paceline.clock import Clock
from paceline.limits.algorithms import State
from paceline.limits.fast_path import FastPath
from paceline.limits.holds import HoldName
from paceline.limits.model import Charge, Decision, Rule
from paceline.limits.ports import Hold, Settlement
from paceline.limits.stores.memory import Holds, MemoryLimitStore

T = TypeVar("T")

SHARDS = 16
_SHIFT, _MASK = 8, SHARDS - 1
"""The bits of a key's hash that name its shard. The lowest eight name its part of a large table."""


class ShardedMemoryLimitStore(MemoryLimitStore):
    """A `MemoryLimitStore` in shards. Each evicts the least recently used of its own keys, at its share of
    `max_keys`."""

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        super().__init__(max_keys=max_keys, clock=clock)
        self._shards = tuple(MemoryLimitStore(max_keys=-(-max_keys // SHARDS), clock=clock) for _ in range(SHARDS))

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        shards = self._shards_of(chain)
        if len(shards) == 1:
            return shards[0].decide(chain, spend=spend, hold=hold, now_us=now_us)
        return _while_held(shards, self._rule_on, chain, spend, hold, now_us)

    def fast_path(self, rule: Rule) -> FastPath | None:
        paths: list[Any] = [shard.fast_path(rule) for shard in self._shards]
        if None in paths:
            return None

        def spend_one(key: str) -> Decision | None:
            return paths[hash(key) >> _SHIFT & _MASK](key)  # type: ignore[no-any-return]

        return spend_one

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        _while_held(self._shards_of(chain), self._refund, chain, now_us)

    def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        return _while_held(self._shards_of(chain), self._settle, hold_id, chain, actual, now_us)

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None) -> Settlement:
        return _while_held(self._shards_of(chain), self._renew, hold_id, chain, ttl_us, now_us)

    def reset(self, chain: Sequence[Charge]) -> None:
        for charge in chain:
            self._shard(charge.key).reset([charge])

    def forget(self, rules: Iterable[Rule]) -> None:
        rules = list(rules)
        for shard in self._shards:
            shard.forget(rules)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def _shard(self, key: str) -> MemoryLimitStore:
        return self._shards[hash(key) >> _SHIFT & _MASK]

    def _shards_of(self, chain: Sequence[Charge]) -> list[MemoryLimitStore]:
        """The shards of a chain, in the order in which they are locked."""
        return [self._shards[number] for number in sorted({hash(charge.key) >> _SHIFT & _MASK for charge in chain})]

    def _holds_of(self, name: HoldName) -> Holds:
        return self._shard(name.key)._holds_of(name)

    def _read(self, charge: Charge) -> State | None:
        return self._shard(charge.key)._read(charge)

    def _touch(self, charge: Charge, now_us: int) -> None:
        self._shard(charge.key)._touch(charge, now_us)

    def _write(self, charge: Charge, state: State, now_us: int) -> None:
        self._shard(charge.key)._write(charge, state, now_us)


def _while_held(shards: Sequence[MemoryLimitStore], work: Callable[..., T], *args: Any) -> T:
    for shard in reversed(shards):
        work = partial(shard._lock.run, work)
    return work(*args)
