"""What every `LimitStore` must do, whatever it is made of: the decisions of the reference, exactly.

A store joins by a fixture `<name>_limit_store` (see `test_limit_store.py`) that yields it, blocking or awaited; an
awaited one is wrapped by `blocking`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, TypeAlias, cast
from uuid import uuid4

from hypothesis import strategies as st

from paceline.limits.algorithms import State, life_us
from paceline.limits.chain import refunded, rule_on
from paceline.limits.holds import HoldRecord, place_hold, renew_hold, settle_hold
from paceline.limits.model import (
    CalendarWindow,
    Charge,
    Concurrency,
    Decision,
    FixedWindow,
    Gcra,
    Rule,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)
from paceline.limits.ports import AsyncLimitStore, Hold, LimitStore

START = datetime(2027, 1, 1, tzinfo=UTC)
T0 = 1_800_000_000_000_000
"""A time in 2027, for stores that check what they are given."""


class Blocking:
    """An awaited store, called as a blocking one, on an event loop of its own."""

    def __init__(self, store: AsyncLimitStore, runner: asyncio.Runner) -> None:
        self.awaited, self._runner = store, runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.awaited, name)

        def call(*args: Any, **options: Any) -> Any:
            # `Runner.run` would set and unset how SIGINT is handled, which takes longer than most calls.
            return self._runner.get_loop().run_until_complete(method(*args, **options))

        return call


def blocking(store: LimitStore | AsyncLimitStore, runner: asyncio.Runner) -> LimitStore:
    """`store` as a blocking one; an awaited store must have been made on `runner`'s loop."""
    if not inspect.iscoroutinefunction(store.decide):
        return cast(LimitStore, store)
    return cast(LimitStore, Blocking(cast(AsyncLimitStore, store), runner))


limits = st.integers(1, 8)
windows = st.sampled_from([1, 7, 1000, 400_000, 1_000_000, 60_000_000]).map(lambda us: timedelta(microseconds=us))
rates = st.sampled_from(
    [Fraction(1), Fraction(2, 3), Fraction(37, 10), Fraction(1000), Fraction(10**6), Fraction(1, 86400), Fraction(3, 7)]
)
ZONES = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Sao_Paulo"]


def coarse_log(limit: int, window: timedelta, entries: int) -> SlidingLog:
    """A log that remembers so many entries at most."""
    return SlidingLog(limit, window, max(window // entries, timedelta(microseconds=1)))


specs: st.SearchStrategy[Spec] = st.one_of(
    st.builds(TokenBucket, limits, rates),
    st.builds(FixedWindow, limits, windows),
    st.builds(SlidingWindow, limits, windows),
    st.builds(SlidingLog, limits, windows),
    st.builds(coarse_log, limits, windows, st.integers(1, 20)),
    st.builds(Gcra, st.sampled_from(["1/second", "10/second", "3/7s", "1000000/second", "7/minute"]), limits),
    st.builds(Concurrency, limits, windows),
    st.builds(Concurrency, limits, windows),
    st.builds(CalendarWindow, limits, st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES)),
)

KEYS = ("k1", "k2")
PLANS = ("p1", "p2", "p3")
cells = st.tuples(st.sampled_from(KEYS), st.sampled_from(PLANS))
links = st.lists(st.tuples(cells, st.integers(0, 7)), min_size=1, max_size=4, unique_by=lambda link: link[0])
steps = st.one_of(
    st.integers(0, 20), st.integers(0, 40 * 86_400_000_000), st.integers(0, 2_000_000), st.integers(0, 200_000_000)
)

actions = st.one_of(
    st.tuples(st.just("advance"), steps),
    st.tuples(st.just("advance"), steps),
    st.tuples(
        st.just("back"),
        st.one_of(st.integers(1, 50), st.integers(1, 300_000_000), st.integers(1, 40 * 86_400_000_000)),
    ),
    st.tuples(st.just("acquire"), links),
    st.tuples(st.just("acquire"), links.map(lambda chain: chain[:1])),
    st.tuples(st.just("acquire"), links.map(lambda chain: chain[:1])),
    st.tuples(st.just("acquire_many"), st.lists(links, min_size=1, max_size=6)),
    st.tuples(st.just("wait"), links.map(lambda chain: chain[:1])),
    st.tuples(st.just("peek"), links),
    st.tuples(st.just("refund"), links),
    st.tuples(st.just("reset"), links),
    st.tuples(st.just("change"), st.tuples(st.sampled_from(PLANS), specs, st.booleans())),
    st.tuples(st.just("reserve"), st.tuples(links, st.integers(0, 2), st.integers(0, 7))),
    st.tuples(st.just("reserve_again"), st.tuples(st.integers(0, 5), st.integers(0, 7))),
    st.tuples(st.just("occupy"), st.tuples(links, st.integers(0, 2))),
    st.tuples(st.just("renew"), st.tuples(st.integers(0, 5), st.sampled_from([10_000_000, 10**15]))),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("settle"), st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 1, 2, 3, 5, 9]))),
    st.tuples(st.just("settle"), st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 1, 2, 3, 5, 9]))),
)
histories = st.tuples(st.tuples(specs, specs, specs), st.lists(actions, min_size=1, max_size=30))

places = st.builds(Concurrency, limits, windows)
place_actions = st.one_of(
    st.tuples(st.just("advance"), steps),
    st.tuples(st.just("back"), st.integers(1, 300_000_000)),
    st.tuples(st.just("acquire"), links.map(lambda chain: chain[:1])),
    st.tuples(st.just("occupy"), st.tuples(links, st.integers(0, 4))),
    st.tuples(st.just("occupy"), st.tuples(links, st.integers(0, 4))),
    st.tuples(st.just("renew"), st.tuples(st.integers(0, 5), st.just(0))),
    st.tuples(st.just("renew"), st.tuples(st.integers(0, 5), st.just(0))),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("refund"), links),
    st.tuples(st.just("change"), st.tuples(st.sampled_from(PLANS), places, st.booleans())),
)
place_histories = st.tuples(st.tuples(places, places, specs), st.lists(place_actions, min_size=1, max_size=40))
"""Histories of held places, with one plan of any kind among them."""


@dataclass
class _Cell:
    """A state the reference wrote, the spec it was written under, and when it stops to matter."""

    state: State
    spec: Spec
    expires_us: int


Cells: TypeAlias = tuple[tuple[str, str], ...]
"""Keys and plans of a chain, in the requested order."""


class Replay:
    """Runs a history on a store and on the reference side by side; every answer must be the same."""

    def __init__(self, store: LimitStore, first: Sequence[Spec]) -> None:
        self.store = store
        self.prefix = f"{{{uuid4().hex}}}"
        """In braces: on a Redis Cluster all keys of a history share a slot."""
        self.now = self.latest = T0
        self.rules = {plan: self._rule(plan, spec, False) for plan, spec in zip(PLANS, first, strict=True)}
        self.cells: dict[tuple[str, str], _Cell] = {}
        self.holds: dict[tuple[int, frozenset[tuple[str, str]]], HoldRecord] = {}
        self.asked: list[tuple[int, Cells]] = []
        """Ids and chains that were to be held, in this order."""
        self.occupied: list[tuple[int, Cells]] = []
        """Ids and places that were taken, in this order."""

    def run(self, history: Sequence[tuple[str, Any]]) -> None:
        for name, argument in history:
            getattr(self, f"_{name}")(argument)

    def _rule(self, plan: str, spec: Spec, shadow: bool) -> Rule:
        return Rule(f"{self.prefix[1:9]}-{plan}", spec, shadow)

    def _chain(self, chosen: Sequence[tuple[tuple[str, str], int]], cost: int | None = None) -> list[Charge]:
        chain = []
        for (key, plan), wish in chosen:
            rule = self.rules[plan]
            chain.append(Charge(f"{self.prefix}{key}", rule, cost or 1 + wish % rule.spec.size))
        return chain

    def _advance(self, step: int) -> None:
        self.now += step
        self.latest = max(self.latest, self.now)

    def _back(self, step: int) -> None:
        self.now -= step

    def _states(self, chain: Sequence[Charge]) -> list[State | None]:
        states: list[State | None] = []
        for charge in chain:
            name = (charge.rule.plan, charge.key)
            cell = self.cells.get(name)
            if (
                cell
                and self.latest >= cell.expires_us
                and (self.now < cell.expires_us or cell.spec != charge.rule.spec)
            ):
                # The state may have expired by now, or not; under its own spec and clock that would not matter.
                self.store.reset([charge])
                del self.cells[name]
                cell = None
            states.append(cell.state if cell else None)
        return states

    def _wrote(self, charge: Charge, state: State | None) -> None:
        if state is not None:
            expires_us = self.now + life_us(charge.rule.spec, state, self.now)
            self.cells[charge.rule.plan, charge.key] = _Cell(state, charge.rule.spec, expires_us)

    def _decide(self, chain: list[Charge], *, spend: bool) -> Decision:
        states = self._states(chain)
        expected, writes = rule_on(chain, states, self.now, spend=spend)
        got = self.store.decide(chain, spend=spend, now_us=self.now)
        assert got == expected, f"{chain} on {states} at {self.now}: {got} is not {expected}"
        for charge, state in zip(chain, writes, strict=True):
            self._wrote(charge, state)
        return got

    def _acquire(self, chosen: Any) -> None:
        self._decide(self._chain(chosen), spend=True)

    def _acquire_many(self, chosen: Any) -> None:
        chains = [self._chain(links) for links in chosen]
        for chain in chains:
            self._states(chain)  # drops what may have expired in the store
        expected = []
        for chain in chains:
            cells = [self.cells.get((charge.rule.plan, charge.key)) for charge in chain]
            decision, writes = rule_on(chain, [cell.state if cell else None for cell in cells], self.now)
            expected.append(decision)
            for charge, state in zip(chain, writes, strict=True):
                self._wrote(charge, state)
        got = self.store.decide_many(chains, now_us=self.now)
        assert got == expected, f"{chains} at {self.now}: {got} is not {expected}"

    def _peek(self, chosen: Any) -> None:
        self._decide(self._chain(chosen), spend=False)

    def _wait(self, chosen: Any) -> None:
        chain = self._chain(chosen)
        first = self._decide(chain, spend=True)
        if not first.allowed:
            self._advance(first.retry_after_us - 1)
            self._decide(chain, spend=False)
            self._advance(1)
            assert self._decide(chain, spend=True).allowed

    def _refund(self, chosen: Any) -> None:
        chain = self._chain(chosen)
        states = self._states(chain)
        self.store.refund(chain, now_us=self.now)
        for charge, state in zip(chain, states, strict=True):
            self._wrote(charge, refunded(charge, state, self.now))

    def _reset(self, chosen: Any) -> None:
        chain = self._chain(chosen)
        self.store.reset(chain)
        for charge in chain:
            self.cells.pop((charge.rule.plan, charge.key), None)

    def _change(self, change: tuple[str, Spec, bool]) -> None:
        plan, spec, shadow = change
        self.rules[plan] = self._rule(plan, spec, shadow)

    def _reserve(self, wish: tuple[Any, int, int]) -> None:
        chosen, number, cost = wish
        cells = tuple(cell for cell, _ in chosen)
        self.asked.append((number, cells))
        self._hold(number, cells, cost)

    def _reserve_again(self, wish: tuple[int, int]) -> None:
        """An id that was used before, on the same chain in reverse order and at any cost."""
        index, cost = wish
        if self.asked:
            number, cells = self.asked[index % len(self.asked)]
            self._hold(number, cells[::-1], cost)

    def _hold(self, number: int, cells: Cells, wish: int) -> None:
        name = (number, frozenset(cells))
        chain = [
            charge._replace(cost=1 + wish * step % charge.rule.size)
            for step, charge in enumerate(self._chain([(cell, 0) for cell in cells], 1), 1)
        ]
        states = self._states(chain)
        known = self.holds.get(name)
        got = self.store.decide(chain, hold=Hold(f"h{number}", 10**15), now_us=self.now)
        if known is not None and not known.cancelled:
            expected, _ = rule_on(chain, states, self.now, spend=False)
            assert got.allowed
            assert got.states == expected.states or len(chain) == 1
            assert got.remaining == expected.remaining
            return
        ruling = rule_on(chain, states, self.now)
        writes: Sequence[State | None] = ruling.writes
        assert got == ruling.decision, f"{chain} on {states} at {self.now}: {got} is not {ruling.decision}"
        if got.allowed:
            writes, self.holds[name] = place_hold(chain, ruling, 2**62)
        for charge, state in zip(chain, writes, strict=True):
            self._wrote(charge, state)

    def _places(self, cells: Cells) -> Cells:
        return tuple(cell for cell in cells if isinstance(self.rules[cell[1]].spec, Concurrency))

    def _occupy(self, wish: tuple[Any, int]) -> None:
        """Holds the places of a chain's concurrency limits, and charges the other limits."""
        chosen, number = wish
        cells = tuple(cell for cell, _ in chosen)
        places = self._places(cells)
        if not places:
            return
        name = (number, frozenset(places))
        chain = self._chain([(cell, 0) for cell in cells], 1)
        states = self._states(chain)
        known = self.holds.get(name)
        got = self.store.decide(chain, hold=Hold(f"h{number}", 10**15, places=True), now_us=self.now)
        if known is not None and not known.cancelled:
            assert got.allowed
            return
        ruling = rule_on(chain, states, self.now)
        writes: Sequence[State | None] = ruling.writes
        assert got == ruling.decision, f"{chain} on {states} at {self.now}: {got} is not {ruling.decision}"
        if got.allowed:
            writes, self.holds[name] = place_hold(chain, ruling, 2**62, places=True)
            self.occupied.append((number, places))
        for charge, state in zip(chain, writes, strict=True):
            self._wrote(charge, state)

    def _occupied(self, index: int) -> tuple[int, Cells] | None:
        """Places that were taken, if all their plans are concurrency limits still."""
        taken = self.occupied[index % len(self.occupied)] if self.occupied else None
        return taken if taken is not None and self._places(taken[1]) == taken[1] else None

    def _renew(self, wish: tuple[int, int]) -> None:
        index, _ = wish
        if (taken := self._occupied(index)) is None:
            return
        number, cells = taken
        name, chain = (number, frozenset(cells)), self._chain([(cell, 0) for cell in cells[::-1]], 1)
        states = self._states(chain)
        known = self.holds[name]
        got = self.store.renew(f"h{number}", chain, 10**15, now_us=self.now)
        if known.settled:
            assert got == "UNKNOWN"
            return
        after, self.holds[name] = renew_hold(chain, states, self.now, known, 2**62)
        lost = self.holds[name].settled
        assert got == ("UNKNOWN" if lost else "APPLIED"), f"{chain} on {states} at {self.now}: {known}"
        for charge, state in zip(chain, after, strict=True):
            self._wrote(charge, state)

    def _leave(self, index: int) -> None:
        if (taken := self._occupied(index)) is not None:
            self._give_up(*taken, 0)

    def _settle(self, wish: tuple[int, int]) -> None:
        index, actual = wish
        number, cells = self.asked[index % len(self.asked)] if self.asked else (0, ((KEYS[0], PLANS[0]),))
        self._give_up(number, cells, actual)

    def _give_up(self, number: int, cells: Cells, most: int) -> None:
        """Settles at this cost for the first charge, and at less for each further one."""
        actual: int | list[int] = most if most % 3 == 0 else [most // step for step in range(1, len(cells) + 1)]
        name, chain = (number, frozenset(cells)), self._chain([(cell, 0) for cell in cells], 1)
        states = self._states(chain)
        known = self.holds.get(name)
        got = self.store.settle(f"h{number}", chain, actual, now_us=self.now)
        assert got == ("UNKNOWN" if known is None else "REPEATED" if known.settled else "APPLIED")
        if known is not None and not known.settled:
            after, self.holds[name] = settle_hold(chain, states, self.now, known, actual)
            for charge, state in zip(chain, after, strict=True):
                self._wrote(charge, state)
