"""Limits in this process's memory: exact under threads, bounded, and quick enough to stand in front of anything.

Each plan and spec has a shelf of keys; see `shelves.py` for how a shelf forgets and for the short way to a decision.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from threading import Thread
from weakref import ref

from headgate.clock import Clock
from headgate.limits.algorithms import State
from headgate.limits.chain import refunded, rule_on
from headgate.limits.holds import Held, HoldName, held, hold_name, settled
from headgate.limits.locks import Turnstile
from headgate.limits.model import Charge, Decision, Reason, Rule
from headgate.limits.ports import Hold, Settlement
from headgate.limits.stores.memory_table import MixedShelf, OneSpender, Shelf, Ticks, shelf_for

MOST_SHELVES = 8
"""How many specs of one plan have a shelf of their own."""
RELEASED_AT_ONCE = 10_000


class MemoryLimitStore:
    """A `LimitStore` for one process. `max_keys` bounds each plan: at the bound, the least recently used keys are
    evicted. The clock is monotonic: setting the host's changes nothing."""

    in_process = True

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        self._max_keys = max_keys
        self._monotonic_ns: Ticks = time.monotonic_ns if clock is None else lambda: clock.monotonic_us() * 1000
        self._gate = Turnstile()
        self._shelves: dict[int, Shelf] = {}
        """By the identity of a rule, for as long as the rule lives."""
        self._rules: dict[int, ref[Rule]] = {}
        self._plans: dict[str, list[Shelf]] = {}
        self._holds = _Holds(max_keys)
        self._unused = False
        """Whether a shelf may be there that no rule has any more."""

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        if len(chain) == 1 and spend and hold is None:
            key, rule, cost = chain[0]
            short = None if rule.shadow else getattr(self._shelf_of(rule), "spend", None)
            decision = None if short is None else short(key, cost, now_us, True)
            if decision is not None:
                return decision  # type: ignore[no-any-return]
        return self._gate.run(self._rule_on, chain, spend, hold, now_us)

    def spender(self, rule: Rule) -> OneSpender | None:
        """The shortest way to spend one unit under `rule`, if there is one."""
        return None if rule.shadow else getattr(self._shelf_of(rule), "spend_one", None)

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        self._gate.run(self._refund, chain, now_us)

    def settle(self, hold_id: str, chain: Sequence[Charge], actual: int, *, now_us: int | None = None) -> Settlement:
        return self._gate.run(self._settle, hold_id, chain, actual, now_us)

    def reset(self, chain: Sequence[Charge]) -> None:
        self._gate.run(self._reset, chain)

    def forget(self, rules: Iterable[Rule]) -> None:
        """Lets the keys of deleted plans go, unless somebody else has rules of theirs."""
        shelves = self._gate.run(self._forget, rules)
        if sum(map(len, shelves)) > RELEASED_AT_ONCE:
            Thread(target=_release, args=(shelves,), name="headgate-release", daemon=True).start()

    def close(self) -> None:
        """Forgets everything."""
        self._gate.run(self._clear)

    def __len__(self) -> int:
        """How many states are kept now."""
        return self._gate.run(lambda: sum(len(shelf) for shelves in self._plans.values() for shelf in shelves))

    def _refund(self, chain: Sequence[Charge], now_us: int | None) -> None:
        now_us = self._now() if now_us is None else now_us
        for charge in chain:
            self._write(charge, refunded(charge, self._read(charge), now_us), now_us)

    def _settle(self, hold_id: str, chain: Sequence[Charge], actual: int, now_us: int | None) -> Settlement:
        now_us = self._now() if now_us is None else now_us
        name = hold_name(hold_id, chain)
        found = self._holds.find(name, now_us)
        if found is None:
            return Settlement.UNKNOWN
        if found.settled:
            return Settlement.REPEATED
        states, found = settled(chain, [self._read(charge) for charge in chain], now_us, found, actual)
        self._holds.change(name, found)
        for charge, state in zip(chain, states, strict=True):
            self._write(charge, state, now_us)
        return Settlement.APPLIED

    def _reset(self, chain: Sequence[Charge]) -> None:
        for charge in chain:
            for shelf in self._plans.get(charge.rule.plan, ()):
                shelf.forget(charge.key)

    def _clear(self) -> None:
        self._shelves.clear()
        self._rules.clear()
        self._plans.clear()
        self._holds = _Holds(self._max_keys)

    def _now(self) -> int:
        return self._monotonic_ns() // 1000

    def _rule_on(self, chain: Sequence[Charge], spend: bool, hold: Hold | None, now_us: int | None) -> Decision:
        now_us = self._now() if now_us is None else now_us
        name = hold_name(hold.id, chain) if hold is not None else None
        found = self._holds.find(name, now_us) if name is not None else None
        repeated = found is not None and not found.cancelled
        states = [self._read(charge) for charge in chain]
        if spend:
            for charge in chain:  # also one that is denied is used: it must not be forgotten, and so admitted
                self._shelf(charge.rule).touch(charge.key, now_us)
        ruling = rule_on(chain, states, now_us, spend=spend and not repeated)
        decision, writes = ruling
        if repeated:
            return decision.but(allowed=True, retry_after_us=0, reason=Reason.OK)
        if hold is not None and name is not None and spend and decision.allowed:
            held_writes, found = held(chain, ruling, now_us + hold.ttl_us)
            writes = tuple(held_writes)
            self._holds.add(name, found, now_us)
        for charge, state in zip(chain, writes, strict=True):
            if state is not None:
                self._write(charge, state, now_us)
        return decision

    def _read(self, charge: Charge) -> State | None:
        for shelf in self._plans.get(charge.rule.plan, ()):
            state = shelf.read(charge.key)
            if state is not None:
                return state
        return None

    def _write(self, charge: Charge, state: State, now_us: int) -> None:
        mine = self._shelf(charge.rule)
        if not mine.alone:
            self._move_to(mine, charge, now_us)
        mine.write(charge.key, state, now_us)

    def _move_to(self, mine: Shelf, charge: Charge, now_us: int) -> None:
        """Has the plan's other shelves forget the key, and what has outlived its time besides."""
        shelves = self._plans[charge.rule.plan]
        for shelf in [shelf for shelf in shelves if shelf is not mine]:
            shelf.forget(charge.key)
            if now_us >= shelf.due:
                shelf.keep_house(now_us)
            if shelf.empty and not shelf.users:
                shelves.remove(shelf)
        mine.alone = len(shelves) == 1

    def _shelf_of(self, rule: Rule) -> Shelf:
        shelf = self._shelves.get(id(rule))
        return self._gate.run(self._shelf, rule) if shelf is None else shelf

    def _shelf(self, rule: Rule) -> Shelf:
        shelf = self._shelves.get(id(rule))
        if shelf is None:
            if self._unused:
                self._tidy()
            shelves = self._plans.setdefault(rule.plan, [])
            shelf = next((known for known in shelves if known.spec == rule.spec), None)
            if shelf is None:
                shelf = self._new_shelf(rule, shelves)
            for known in shelves:
                known.alone = len(shelves) == 1
            self._use(rule, shelf)
        return shelf

    def _new_shelf(self, rule: Rule, shelves: list[Shelf]) -> Shelf:
        """A shelf for a spec that the plan has not had; one for all that come after the first few: whoever has
        thousands of different overrides must not look for a key in thousands of places."""
        if len(shelves) < MOST_SHELVES:
            shelf = shelf_for(rule.plan, rule.spec, self._max_keys, self._gate, self._monotonic_ns)
            shelves.append(shelf)
            return shelf
        mixed = next((known for known in shelves if isinstance(known, MixedShelf)), None)
        if mixed is None:
            mixed = MixedShelf(rule.spec, self._max_keys)
            shelves.append(mixed)
        mixed.take_in(rule.spec)
        return mixed

    def _use(self, rule: Rule, shelf: Shelf) -> None:
        name = id(rule)

        def died(_: object) -> None:
            # Runs wherever the last reference went, perhaps inside the gate: only what is atomic.
            self._rules.pop(name, None)
            if self._shelves.pop(name, None) is not None:
                shelf.users -= 1
                self._unused = True

        shelf.users += 1
        self._shelves[name], self._rules[name] = shelf, ref(rule, died)

    def _tidy(self) -> None:
        """Lets the shelves of plans that are no more forget, and drops them when they are empty."""
        now_us = self._now()
        self._unused = False
        for plan, shelves in list(self._plans.items()):
            for shelf in [shelf for shelf in shelves if not shelf.users]:
                shelf.keep_house(now_us)
                if shelf.empty:
                    shelves.remove(shelf)
                else:
                    self._unused = True
            if not shelves:
                del self._plans[plan]

    def _forget(self, rules: Iterable[Rule]) -> list[Shelf]:
        plans = set()
        for rule in rules:
            plans.add(rule.plan)
            shelf = self._shelves.pop(id(rule), None)
            self._rules.pop(id(rule), None)
            if shelf is not None:
                shelf.users -= 1
        gone = [plan for plan in plans if not any(shelf.users for shelf in self._plans.get(plan, ()))]
        return [shelf for plan in gone for shelf in self._plans.pop(plan, ())]


def _release(shelves: Sequence[Shelf]) -> None:
    """Empties shelves that nobody has any more. Python would free a million keys in one go, while nothing else runs."""
    for shelf in shelves:
        for table in shelf.tables():
            while table:
                table.popitem()


class AsyncMemoryLimitStore:
    """`MemoryLimitStore` for event loops: it never waits, so it blocks no loop."""

    in_process = True

    def __init__(self, store: MemoryLimitStore | None = None) -> None:
        self.store = store if store is not None else MemoryLimitStore()

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        return self.store.decide(chain, spend=spend, hold=hold, now_us=now_us)

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        self.store.refund(chain, now_us=now_us)

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int, *, now_us: int | None = None
    ) -> Settlement:
        return self.store.settle(hold_id, chain, actual, now_us=now_us)

    async def reset(self, chain: Sequence[Charge]) -> None:
        self.store.reset(chain)

    async def close(self) -> None:
        self.store.close()

    def spender(self, rule: Rule) -> OneSpender | None:
        return self.store.spender(rule)

    def forget(self, rules: Iterable[Rule]) -> None:
        self.store.forget(rules)


class _Holds:
    """Reservations by name, forgotten as they expire, the soonest first when there are too many."""

    __slots__ = ("_by_name", "_expiring", "_most")

    def __init__(self, most: int) -> None:
        self._by_name: dict[HoldName, Held] = {}
        self._expiring: list[tuple[int, HoldName]] = []
        self._most = most

    def find(self, name: HoldName, now_us: int) -> Held | None:
        found = self._by_name.get(name)
        return found if found is not None and now_us < found.expires_us else None

    def change(self, name: HoldName, found: Held) -> None:
        self._by_name[name] = found

    def add(self, name: HoldName, made: Held, now_us: int) -> None:
        expiring = self._expiring
        for _ in range(2):
            if expiring and (expiring[0][0] <= now_us or len(expiring) >= self._most):
                expires_us, oldest = heapq.heappop(expiring)
                known = self._by_name.get(oldest)
                if known is not None and known.expires_us == expires_us:
                    del self._by_name[oldest]
        self._by_name[name] = made
        heapq.heappush(expiring, (made.expires_us, name))
