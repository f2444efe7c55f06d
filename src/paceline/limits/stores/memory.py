"""Limits in this process's memory: exact under threads, bounded, and fast enough for any path.

Each plan and spec has a key table; see `memory_table.py` for how it evicts keys, and
`memory_shortcuts.py` for the fast path of a decision.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from functools import partial
from weakref import ref

from paceline.clock import Clock, SystemClock
from paceline.daemon_threads import DaemonThread
from paceline.limits.algorithms import State
from paceline.limits.chain import CALENDAR, refunded, rule_on
from paceline.limits.fast_path import FastPath
from paceline.limits.holds import HoldName, HoldRecord, held_part, hold_name, place_hold, renew_hold, settle_hold
from paceline.limits.locks import SpinLock
from paceline.limits.model import Charge, Decision, Reason, Rule
from paceline.limits.ports import Hold, Settlement
from paceline.limits.stores.memory_shortcuts import Ticks, key_table_for
from paceline.limits.stores.memory_table import KeyTable, MixedKeyTable
from paceline.options import check_whole

MAX_TABLES = 8
"""How many specs of one plan have a key table of their own."""
MAX_FREED_AT_ONCE = 10_000


class MemoryLimitStore:
    """A `LimitStore` for one process. `max_keys` bounds each plan: at the bound, the least recently used keys are
    evicted. The clock is monotonic: setting the host's changes nothing."""

    in_process = True

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        check_whole("max_keys", max_keys)
        self._max_keys = max_keys
        self._monotonic_ns: Ticks = time.monotonic_ns if clock is None else lambda: clock.monotonic_us() * 1000
        self._wall_us = (clock or SystemClock()).now_us
        """For calendars: a monotonic clock has no midnight."""
        self._lock = SpinLock()
        self._tables: dict[int, KeyTable] = {}
        """By the identity of a rule, for as long as the rule lives."""
        self._rules: dict[int, ref[Rule]] = {}
        self._plans: dict[str, list[KeyTable]] = {}
        self._holds = _Holds(max_keys)
        self._unused = False
        """Whether there may be a table that no rule uses any more."""

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        if len(chain) == 1 and spend and hold is None:
            key, rule, cost = chain[0]
            charge = None if rule.shadow or cost > rule.size else getattr(self._table_of(rule), "spend", None)
            decision = None if charge is None else charge(key, cost, now_us, True)
            if decision is not None:
                return decision  # type: ignore[no-any-return]
        return self._lock.run(self._rule_on, chain, spend, hold, now_us)

    def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        return [self.decide(chain, now_us=now_us) for chain in chains]

    def fast_path(self, rule: Rule) -> FastPath | None:
        """The fast path that spends one unit under `rule`, if there is one."""
        return None if rule.shadow else getattr(self._table_of(rule), "spend_one", None)

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        self._lock.run(self._refund, chain, now_us)

    def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        return self._lock.run(self._settle, hold_id, chain, actual, now_us)

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None) -> Settlement:
        return self._lock.run(self._renew, hold_id, chain, ttl_us, now_us)

    def reset(self, chain: Sequence[Charge]) -> None:
        self._lock.run(self._reset, chain)

    def forget(self, rules: Iterable[Rule]) -> None:
        """Drops the keys of deleted plans, unless another limiter has rules of theirs."""
        tables = self._lock.run(self._forget, rules)
        if sum(map(len, tables)) > MAX_FREED_AT_ONCE:
            DaemonThread(partial(_free, tables))

    def close(self) -> None:
        """Forgets everything."""
        self._lock.run(self._clear)

    def __len__(self) -> int:
        """How many states are kept now."""
        return self._lock.run(lambda: sum(len(table) for tables in self._plans.values() for table in tables))

    def _refund(self, chain: Sequence[Charge], now_us: int | None) -> None:
        wall_us = self._wall_us() if now_us is None else now_us
        now_us = self._now() if now_us is None else now_us
        for charge in chain:
            spec_us = wall_us if charge.rule.spec.tag == CALENDAR else now_us
            self._write(charge, refunded(charge, self._read(charge), spec_us), now_us)

    def _settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], now_us: int | None
    ) -> Settlement:
        wall_us = self._wall_us() if now_us is None else now_us
        now_us = self._now() if now_us is None else now_us
        name = hold_name(hold_id, chain)
        record = self._holds.find(name, now_us)
        if record is None:
            return Settlement.UNKNOWN
        if record.settled:
            return Settlement.REPEATED
        states, record = settle_hold(chain, [self._read(charge) for charge in chain], now_us, record, actual, wall_us)
        self._holds.change(name, record)
        for charge, state in zip(chain, states, strict=True):
            self._write(charge, state, now_us)
        return Settlement.APPLIED

    def _renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, now_us: int | None) -> Settlement:
        now_us = self._now() if now_us is None else now_us
        name = hold_name(hold_id, chain)
        record = self._holds.find(name, now_us)
        if record is None or record.settled:
            return Settlement.UNKNOWN
        states = [self._read(charge) for charge in chain]
        after, renewed = renew_hold(chain, states, now_us, record, now_us + ttl_us)
        self._holds.add(name, renewed, now_us)
        for charge, state in zip(chain, after, strict=True):
            if state is not None:
                self._write(charge, state, now_us)
        return Settlement.UNKNOWN if renewed.settled else Settlement.APPLIED

    def _reset(self, chain: Sequence[Charge]) -> None:
        for charge in chain:
            for table in self._plans.get(charge.rule.plan, ()):
                table.forget(charge.key)

    def _clear(self) -> None:
        self._tables.clear()
        self._rules.clear()
        self._plans.clear()
        self._holds = _Holds(self._max_keys)

    def _now(self) -> int:
        return self._monotonic_ns() // 1000

    def _rule_on(self, chain: Sequence[Charge], spend: bool, hold: Hold | None, now_us: int | None) -> Decision:
        wall_us = self._wall_us() if now_us is None else now_us
        now_us = self._now() if now_us is None else now_us
        name = hold_name(hold.id, held_part(chain, hold.places)) if hold is not None else None
        record = self._holds.find(name, now_us) if name is not None else None
        repeated = record is not None and not record.cancelled
        states = [self._read(charge) for charge in chain]
        if spend:
            for charge in chain:  # a denied key is in use, too: evicted, it would be admitted again
                self._table(charge.rule).touch(charge.key, now_us)
        ruling = rule_on(chain, states, now_us, spend=spend and not repeated, wall_us=wall_us)
        decision, writes = ruling
        if repeated:
            return decision.but(allowed=True, retry_after_us=0, reason=Reason.OK)
        if hold is not None and name is not None and spend and decision.allowed:
            held_writes, record = place_hold(chain, ruling, now_us + hold.ttl_us, hold.places)
            writes = tuple(held_writes)
            self._holds.add(name, record, now_us)
        for charge, state in zip(chain, writes, strict=True):
            if state is not None:
                self._write(charge, state, now_us)
        return decision

    def _read(self, charge: Charge) -> State | None:
        for table in self._plans.get(charge.rule.plan, ()):
            state = table.read(charge.key)
            if state is not None:
                return state
        return None

    def _write(self, charge: Charge, state: State, now_us: int) -> None:
        own = self._table(charge.rule)
        if not own.alone:
            self._move_to(own, charge, now_us)
        own.write(charge.key, state, now_us)

    def _move_to(self, own: KeyTable, charge: Charge, now_us: int) -> None:
        """Removes the key from the plan's other tables, and evicts their expired keys."""
        tables = self._plans[charge.rule.plan]
        for table in [table for table in tables if table is not own]:
            table.forget(charge.key)
            if now_us >= table.evict_at_us:
                table.evict_expired(now_us)
            if table.empty and not table.rule_count:
                tables.remove(table)
        own.alone = len(tables) == 1

    def _table_of(self, rule: Rule) -> KeyTable:
        table = self._tables.get(id(rule))
        return self._lock.run(self._table, rule) if table is None else table

    def _table(self, rule: Rule) -> KeyTable:
        table = self._tables.get(id(rule))
        if table is None:
            if self._unused:
                self._drop_unused()
            tables = self._plans.setdefault(rule.plan, [])
            table = next((other for other in tables if other.spec == rule.spec), None)
            if table is None:
                table = self._new_table(rule, tables)
            for other in tables:
                other.alone = len(tables) == 1
            self._use(rule, table)
        return table

    def _new_table(self, rule: Rule, tables: list[KeyTable]) -> KeyTable:
        """A table for a new spec of a plan. After the first few, specs share one table: with thousands of different
        overrides, a key must not be looked up in thousands of tables."""
        if len(tables) < MAX_TABLES:
            table = key_table_for(rule.plan, rule.spec, self._max_keys, self._lock, self._monotonic_ns)
            tables.append(table)
            return table
        mixed = next((other for other in tables if isinstance(other, MixedKeyTable)), None)
        if mixed is None:
            mixed = MixedKeyTable(rule.spec, self._max_keys)
            tables.append(mixed)
        mixed.add_spec(rule.spec)
        return mixed

    def _use(self, rule: Rule, table: KeyTable) -> None:
        name = id(rule)

        def on_rule_deleted(_: object) -> None:
            # Runs where the last reference was dropped, perhaps while the lock is held: atomic operations only.
            self._rules.pop(name, None)
            if self._tables.pop(name, None) is not None:
                table.rule_count -= 1
                self._unused = True

        table.rule_count += 1
        self._tables[name], self._rules[name] = table, ref(rule, on_rule_deleted)

    def _drop_unused(self) -> None:
        """Evicts expired keys of tables that no rule uses, and drops the empty ones."""
        now_us = self._now()
        self._unused = False
        for plan, tables in list(self._plans.items()):
            for table in [table for table in tables if not table.rule_count]:
                table.evict_expired(now_us)
                if table.empty:
                    tables.remove(table)
                else:
                    self._unused = True
            if not tables:
                del self._plans[plan]

    def _forget(self, rules: Iterable[Rule]) -> list[KeyTable]:
        plans = set()
        for rule in rules:
            plans.add(rule.plan)
            table = self._tables.pop(id(rule), None)
            self._rules.pop(id(rule), None)
            if table is not None:
                table.rule_count -= 1
        removed = [plan for plan in plans if not any(table.rule_count for table in self._plans.get(plan, ()))]
        return [table for plan in removed for table in self._plans.pop(plan, ())]


def _free(tables: Sequence[KeyTable]) -> None:
    """Empties dropped tables key by key. Freeing a million keys at once would hold the GIL."""
    for table in tables:
        for segment in table.segments():
            while segment:
                segment.popitem()


class AsyncMemoryLimitStore:
    """`MemoryLimitStore` for event loops: it never waits, so it blocks no loop."""

    in_process = True

    def __init__(self, store: MemoryLimitStore | None = None) -> None:
        self.store = store if store is not None else MemoryLimitStore()

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        return self.store.decide(chain, spend=spend, hold=hold, now_us=now_us)

    async def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        return self.store.decide_many(chains, now_us=now_us)

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        self.store.refund(chain, now_us=now_us)

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        return self.store.settle(hold_id, chain, actual, now_us=now_us)

    async def renew(
        self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None
    ) -> Settlement:
        return self.store.renew(hold_id, chain, ttl_us, now_us=now_us)

    async def reset(self, chain: Sequence[Charge]) -> None:
        self.store.reset(chain)

    async def close(self) -> None:
        self.store.close()

    def fast_path(self, rule: Rule) -> FastPath | None:
        return self.store.fast_path(rule)

    def forget(self, rules: Iterable[Rule]) -> None:
        self.store.forget(rules)


class _Holds:
    """Hold records by name. Expired ones are evicted; above the maximum, those that expire soonest."""

    __slots__ = ("_by_name", "_expiring", "_max_holds")

    def __init__(self, max_holds: int) -> None:
        self._by_name: dict[HoldName, HoldRecord] = {}
        self._expiring: list[tuple[int, HoldName]] = []
        self._max_holds = max_holds

    def find(self, name: HoldName, now_us: int) -> HoldRecord | None:
        record = self._by_name.get(name)
        return record if record is not None and now_us < record.expires_us else None

    def change(self, name: HoldName, record: HoldRecord) -> None:
        self._by_name[name] = record

    def add(self, name: HoldName, record: HoldRecord, now_us: int) -> None:
        expiring = self._expiring
        for _ in range(2):
            if expiring and (expiring[0][0] <= now_us or len(expiring) >= self._max_holds):
                expires_us, oldest = heapq.heappop(expiring)
                known = self._by_name.get(oldest)
                if known is not None and known.expires_us == expires_us:
                    del self._by_name[oldest]
        self._by_name[name] = record
        heapq.heappush(expiring, (record.expires_us, name))
