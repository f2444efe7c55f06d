"""Leases: take many tokens from the store at once, decide here, give back what is left.

Every token spent here was taken from the store before, so no number of processes admits more than the plans allow:
since the first use of a key, at most what its plans give in that time. What a lease can do is move a token: it is spent
up to `longest` seconds after it was taken, or given back. So within any span t a token bucket admits at most
capacity + rate × (t + longest), and besides no more than was lent out when the span began: `share` of the capacity for
each process. A window's tokens are never spent, nor given back, after that window. Sliding logs promise more than this,
so they are never leased; nor are shadows.

How many to take adapts: twice as many when a lease was spent within half its time, half as many when most was left.

A forked child starts with empty purses: the tokens in them are the parent's.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from headgate.clock import Clock, SystemClock
from headgate.errors import ConfigurationError
from headgate.limits.locks import Turnstile
from headgate.limits.model import (
    Charge,
    Decision,
    FixedWindow,
    Reason,
    Rule,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)

MOST_PURSES = 10_000
DENIED_US = 10_000
"""How long a denial is repeated without asking: others may give tokens back any time."""

_OK = Reason.OK


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """A lease is spent within `longest` seconds and takes at most `share` of a plan's size, and `most` tokens."""

    longest: float = 1.0
    share: float = 0.1
    most: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.longest <= 60:
            raise ConfigurationError("longest", "use seconds above 0 and up to 60")
        if not 0 < self.share <= 1:
            raise ConfigurationError("share", "use a share above 0 and up to 1")
        if self.most < 1:
            raise ConfigurationError("most", "use at least 1")


def less(denial: Decision, amount: int, cost: int) -> int:
    """What to ask for after `amount` was denied: what is left, if that is enough for `cost`; else `cost` itself, to
    hear when it will be."""
    left = min(state.remaining for state in denial.states)
    return left if cost <= left < amount else cost


class Purse:
    """The tokens taken for one chain and not yet spent. Touch it only while holding its lock."""

    __slots__ = (
        "_ceiling", "_denial", "_denied_at_us", "_longest_us", "_size", "_taken_us", "asked", "chain", "failed", "last",
        "lock", "name", "reset_at_us", "return_until_us", "rule", "rules", "token_us", "tokens",
        "until_us",
    )  # fmt: skip

    def __init__(self, name: tuple[str, ...], chain: Sequence[Charge], policy: LeasePolicy, lock: Any) -> None:
        self.name = name
        self.chain = [charge._replace(cost=1) for charge in chain]
        self.rule: Rule | None = chain[0].rule
        """Whose short way leads here; `None` while the store is being asked, when that way would be a long wait."""
        self.rules = tuple(charge.rule for charge in chain)
        """Under which its tokens are taken; the chain's, by which they go back, may have grown since."""
        self.lock = lock
        self.tokens = 0
        self.last = Decision.of(True, 0, 0, 0, 0, chain[0].rule.plan)
        """What the store said when tokens were last taken."""
        self.return_until_us = 0
        """Until when tokens may be given back: a window that has ended must not lend to the next."""
        self._longest_us = round(policy.longest * 1_000_000)
        smallest = min(charge.rule.size for charge in chain)
        self._ceiling = max(min(int(smallest * policy.share), policy.most), 1)
        self._size = 0
        self._taken_us = 0
        self.until_us = 0
        """Until when tokens may be spent here."""
        self.reset_at_us = 0
        """When all will be free again, if the tokens here are spent."""
        self.token_us = 0
        """How much sooner that is for each token that is not."""
        self.asked = 0
        """How often the store was asked for tokens."""
        self.failed = False
        """Whether it could not be, the last time."""
        self._denial: tuple[int, Decision] | None = None
        self._denied_at_us = 0

    def serves(self, chain: Sequence[Charge]) -> bool:
        """Whether its tokens were taken under the plans of `chain`, as they are now."""
        return all(rule is charge.rule for rule, charge in zip(self.rules, chain, strict=True))

    def spend(self, cost: int, now_us: int, waited: bool = False) -> Decision | None:
        """A decision from what is here; `None` if the store must be asked. Who `waited` while it was asked hears
        the denial that came of it, however long that took."""
        last = self.last
        if self.tokens >= cost and now_us < self.until_us:
            self.tokens -= cost
            return Decision.of(
                True, last.remaining + self.tokens, last.limit, 0, self._reset_after_us(now_us), last.plan
            )
        denied = self._denial
        if denied is not None:
            denied_cost, denial = denied
            passed = now_us - self._denied_at_us
            if cost >= denied_cost:
                if waited and not self.failed:
                    return denial
                if passed < min(denial.retry_after_us, DENIED_US):
                    return denial.but(retry_after_us=denial.retry_after_us - passed)
        return None

    def _reset_after_us(self, now_us: int) -> int:
        return max(self.reset_at_us - self.tokens * self.token_us - now_us, 0)

    @contextmanager
    def being_filled(self) -> Iterator[None]:
        """Closes the short way as long as it lasts."""
        rule, self.rule = self.rule, None
        try:
            yield
        finally:
            self.rule = rule

    def missed(self) -> None:
        """The store could not be asked: who waited meanwhile need not try as well."""
        self.asked += 1
        self.failed = True

    def forget_denial(self) -> None:
        """Lets the next call ask the store; this alone needs no lock."""
        self._denial = None

    def idle(self, now_us: int) -> bool:
        """Whether nothing here can be spent any more."""
        return now_us >= self.until_us

    def leftover(self, now_us: int, *, everything: bool = False) -> int:
        """Takes out what may no longer be spent here, or everything, to be given back; what must not be is gone."""
        if self.tokens == 0 or (now_us < self.until_us and not everything):
            return 0
        tokens, self.tokens = self.tokens, 0
        if tokens * 2 > self._size:
            self._size //= 2
        return tokens if now_us < self.return_until_us else 0

    def charged(self, amount: int) -> list[Charge]:
        """This purse's chain at the cost of `amount`."""
        return [charge._replace(cost=amount) for charge in self.chain]

    def wish(self, cost: int, now_us: int) -> int:
        """How much to ask the store for."""
        if self._size == 0:
            self._size = 1
        elif self.tokens < cost and now_us - self._taken_us < self._longest_us // 2:
            self._size = min(self._size * 2, self._ceiling)
        return max(self._size, cost)

    def took(self, amount: int, cost: int, decision: Decision, now_us: int) -> Decision:
        """Puts what the store gave into the purse, less `cost`, and answers the caller. `now_us` is from before the
        store was asked, so that every end computed from it comes early rather than late."""
        self.asked += 1
        self.failed = False
        if not decision.allowed:
            self._size = max(self._size // 2, 1)
            self._denial, self._denied_at_us = (cost, decision), now_us
            return decision
        lives_us, returns_us = self._longest_us, 2**62
        for charge, state in zip(self.chain, decision.states, strict=True):
            spec = charge.rule.spec
            if isinstance(spec, FixedWindow | SlidingWindow):
                ends_us = state.reset_after_us - (spec.window_us if isinstance(spec, SlidingWindow) else 0)
                lives_us = min(lives_us, ends_us)
                # A margin for clocks that do not run alike.
                returns_us = min(returns_us, ends_us - ends_us // 100)
        if self.tokens == 0:
            self.until_us, self.return_until_us = now_us + lives_us, now_us + returns_us
        else:
            self.until_us = min(self.until_us, now_us + lives_us)
            self.return_until_us = min(self.return_until_us, now_us + returns_us)
        self._taken_us = now_us
        self._denial = None
        self.last = decision
        self.reset_at_us = now_us + decision.reset_after_us
        self.tokens += amount - cost
        tokens, self.token_us = self.tokens, 0
        states = []
        for charge, state in zip(self.chain, decision.states, strict=True):
            token_us = _token_us(charge.rule.spec)
            if state.plan == decision.plan:
                self.token_us = token_us
            reset_us = max(state.reset_after_us - tokens * token_us, 0)
            states.append(state._replace(remaining=state.remaining + tokens, reset_after_us=reset_us))
        return decision.but(
            remaining=decision.remaining + tokens,
            reset_after_us=self._reset_after_us(now_us),
            chain=tuple(states) if decision.chain else (),
        )


class Purses:
    """A limiter's purses, by key and plans, the one filled longest ago first."""

    def __init__(self, policy: LeasePolicy, new_lock: Callable[[], Any] = threading.Lock) -> None:
        self._policy = policy
        self.turnstile = Turnstile()
        """Whoever changes a purse's tokens, where threads do, is inside. A purse's own lock is held while the store is
        asked; it is one of `threading`'s, which `with` never loses to a signal handler that raises."""
        self._new_lock = new_lock
        self._lock = threading.Lock()
        self._purses: OrderedDict[tuple[str, ...], Purse] = OrderedDict()
        self._retired: list[Purse] = []
        _ALL.add(self)

    def start_afresh(self) -> None:
        """Forgets everything, for a forked child. The lock may have been held by a thread that is not here."""
        self._lock = threading.Lock()
        self._retired.clear()
        self._purses.clear()

    @staticmethod
    def suits(chain: Sequence[Charge]) -> bool:
        """Whether a chain can be leased."""
        cost = chain[0].cost
        return all(
            charge.cost == cost and not charge.rule.shadow and not isinstance(charge.rule.spec, SlidingLog)
            for charge in chain
        )

    def find(self, chain: Sequence[Charge]) -> Purse:
        """The purse of a chain; a new one if its plans have changed."""
        name = tuple(part for charge in chain for part in (charge.key, charge.rule.plan))
        purse = self._purses.get(name)
        if purse is not None and purse.serves(chain):
            return purse
        with self._lock:
            before = self._purses.get(name)
            if before is not None and before.serves(chain):
                return before
            purse = self._purses[name] = Purse(name, chain, self._policy, self._new_lock())
            # What is left under plans that only grew goes back, by their new arithmetic. Else it stays spent: it could
            # make room that nobody left, or undo the state of another algorithm.
            if before is not None and all(map(_grew, before.chain, chain)):
                before.chain = [charge._replace(cost=1) for charge in chain]
                self._retired.append(before)
            return purse

    def filled(self, purse: Purse, now_us: int) -> Purse | None:
        """Notes that `purse` was filled; another one that should be emptied, if there is one, taken out."""
        with self._lock:
            if self._purses.get(purse.name) is purse:
                self._purses.move_to_end(purse.name)
            if self._retired:
                return self._retired.pop()
            name, oldest = next(iter(self._purses.items()), ((), purse))
            if oldest is not purse and (oldest.idle(now_us) or len(self._purses) > MOST_PURSES):
                del self._purses[name]
                return oldest
            return None

    def forget(self, chain: Sequence[Charge]) -> None:
        """Drops every purse that holds tokens of a (plan, key) of `chain`, after these were made as new."""
        with self._lock:
            for purse in self._touching(chain):
                del self._purses[purse.name]

    def forget_denials(self, chain: Sequence[Charge]) -> None:
        """Lets every purse on a (plan, key) of `chain` ask again, after something was given back there."""
        with self._lock:
            for purse in self._touching(chain):
                purse.forget_denial()

    def _touching(self, chain: Sequence[Charge]) -> list[Purse]:
        cells = {(charge.key, charge.rule.plan) for charge in chain}
        return [
            purse
            for purse in self._purses.values()
            if any((charge.key, charge.rule.plan) in cells for charge in purse.chain)
        ]

    def clear(self) -> list[Purse]:
        """Takes all purses out."""
        with self._lock:
            purses = [*self._retired, *self._purses.values()]
            self._retired.clear()
            self._purses.clear()
            return purses

    def spender(self, rule: Rule, clock: Clock) -> Callable[[str], Decision | None]:
        """The short way to spend one unit under a rule."""
        purses, plan, tell_us = self._purses, rule.plan, clock.monotonic_us
        try_enter, leave = self.turnstile.try_enter, self.turnstile.leave
        tell_ns = time.monotonic_ns if isinstance(clock, SystemClock) else lambda: tell_us() * 1000

        def spend_one(key: str) -> Decision | None:
            purse = purses.get((key, plan))
            if purse is None or purse.rule is not rule:
                return None
            try:
                try_enter()
            except IndexError:
                return None
            except BaseException:
                leave(None)
                raise
            try:
                now_us = tell_ns() // 1000
                left = purse.tokens - 1
                if left < 0 or now_us >= purse.until_us:
                    return purse.spend(1, now_us)
                purse.tokens = left
                last = purse.last
            finally:
                leave(None)
            reset = purse.reset_at_us - left * purse.token_us - now_us
            if reset < 0:
                reset = 0
            return Decision((True, last.remaining + left, last.limit, 0, reset, plan, _OK, False, ()))

        def spend_one_on_a_loop(key: str) -> Decision | None:
            # Between two awaits nobody else runs: no lock.
            purse = purses.get((key, plan))
            return None if purse is None or purse.rule is not rule else purse.spend(1, tell_us())

        return spend_one if self._new_lock is threading.Lock else spend_one_on_a_loop


def _token_us(spec: Spec) -> int:
    """How much sooner a plan is as new for each token not spent; rounded down, rather late than early."""
    return spec.unit // spec.gain if isinstance(spec, TokenBucket) else 0


_ALL: WeakSet[Purses] = WeakSet()


def _start_all_afresh() -> None:
    for purses in _ALL:
        purses.start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_all_afresh)


def _grew(before: Charge, after: Charge) -> bool:
    """Whether a charge's rule is what it was, or the same algorithm with more room."""
    old, new = before.rule.spec, after.rule.spec
    window = getattr(new, "window_us", None)
    return new.tag == old.tag and new.size >= old.size and window == getattr(old, "window_us", None)
