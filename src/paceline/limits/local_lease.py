"""Local leases: take many tokens from the store at once, decide in this process, return the rest.

Every token of a lease was taken from the store before it is spent, so no number of processes admits more than the plans
allow: since the first use of a key, at most what its plans give in that time. A lease can delay a token: it is spent up
to `longest` seconds after it was taken, or given back. So within any span t a token bucket admits at most
capacity + rate × (t + longest), and besides no more than was lent out when the span began: `share` of the capacity for
each process. A window's tokens are never spent after that window, nor given back in its last `RETURN_MARGIN_US`: a
refund that arrived late would make room in the next one. Sliding logs promise more than this, so they are never leased;
nor are shadows.

The size of a lease adapts: it doubles when a lease was spent within half its time, and halves when most was left.

A forked child starts without leases: their tokens are the parent's.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.clock import Clock, SystemClock
from paceline.errors import ConfigurationError
from paceline.forks import reset_in_children
from paceline.limits.locks import HELD, NoLock, SpinLock
from paceline.limits.model import (
    CalendarWindow,
    Charge,
    Concurrency,
    Decision,
    FixedWindow,
    Gcra,
    Reason,
    Rule,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)
from paceline.locks import Lock
from paceline.options import is_number, is_whole

MAX_LEASES = 10_000
DENIED_US = 10_000
"""How long a denial is repeated without a call to the store. It is short, as tokens may be given back any time."""

RETURN_MARGIN_US = 10_000_000
"""How long a refund may be in flight: a store that was frozen still executes requests that have timed out."""

UNLEASED = SlidingLog | CalendarWindow | Gcra | Concurrency
"""Algorithms whose promise a lease would break: exact spans, midnight, spacing, places."""

_OK = Reason.OK


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How large local leases may be, and how long they live.

    A lease is spent within `longest` seconds and takes at most `share` of a plan's size, and `most` tokens.

        Limiter("redis://cache", plans=plans, lease=LeasePolicy(longest=0.5))

    Raises:
        ConfigurationError: a value is out of its range.
    """

    longest: float = 1.0
    share: float = 0.1
    most: int = 10_000

    def __post_init__(self) -> None:
        if not is_number(self.longest) or not 0 < self.longest <= 60:
            raise ConfigurationError("longest", "use seconds above 0 and up to 60")
        if not is_number(self.share) or not 0 < self.share <= 1:
            raise ConfigurationError("share", "use a share above 0 and up to 1")
        if not is_whole(self.most) or self.most < 1:
            raise ConfigurationError("most", "use a whole number of at least 1")


def smaller_request(denial: Decision, amount: int, cost: int) -> int:
    """How many tokens to request after `amount` was denied: what is left, if that covers `cost`; else `cost` itself,
    whose denial says when to retry."""
    left = min(state.remaining for state in denial.states)
    return left if cost <= left < amount else cost


class LocalLease:
    """The tokens taken for one chain and not yet spent. Change it only while holding its lock."""

    __slots__ = (
        "_ceiling", "_denial", "_denied_at_us", "_longest_us", "_size", "_taken_us", "chain", "last",
        "lock", "name", "refill_failed", "refills", "reset_at_us", "return_until_us", "rule", "rules", "token_us",
        "tokens", "until_us",
    )  # fmt: skip

    def __init__(self, name: tuple[str, ...], chain: Sequence[Charge], policy: LeasePolicy, lock: Any) -> None:
        self.name = name
        self.chain = [charge._replace(cost=1) for charge in chain]
        self.rule: Rule | None = chain[0].rule
        """The rule whose fast path may use this lease; `None` while a refill is in flight."""
        self.rules = tuple(charge.rule for charge in chain)
        """The rules its tokens were taken under. Tokens go back by the rules of `chain`, which may have grown since."""
        self.lock = lock
        self.tokens = 0
        self.last = Decision.of(True, 0, 0, 0, 0, chain[0].rule.plan)
        """The store's decision when tokens were last taken."""
        self.return_until_us = 0
        """Until when tokens may be given back: those of a window that has ended must not make room in the next."""
        self._longest_us = round(policy.longest * 1_000_000)
        smallest = min(charge.rule.size for charge in chain)
        self._ceiling = max(min(int(smallest * policy.share), policy.most), 1)
        self._size = 0
        self._taken_us = 0
        self.until_us = 0
        """Until when tokens may be spent."""
        self.reset_at_us = 0
        """When the plan is as new, if all tokens of this lease are spent."""
        self.token_us = 0
        """How much sooner that is per unspent token."""
        self.refills = 0
        """How many refills were attempted."""
        self.refill_failed = False
        """Whether the last refill failed because the store was unavailable."""
        self._denial: tuple[int, Decision] | None = None
        self._denied_at_us = 0

    def matches(self, chain: Sequence[Charge]) -> bool:
        """Whether its tokens were taken under the present rules of `chain`."""
        return all(rule is charge.rule for rule, charge in zip(self.rules, chain, strict=True))

    def spend(self, cost: int, now_us: int, waited: bool = False) -> Decision | None:
        """A decision from this lease; `None` if it needs a refill. A caller that `waited` for the refill in flight gets
        its denial, however old that is."""
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
                if waited and not self.refill_failed:
                    return denial
                if passed < min(denial.retry_after_us, DENIED_US):
                    return denial.but(retry_after_us=denial.retry_after_us - passed)
        return None

    def _reset_after_us(self, now_us: int) -> int:
        return max(self.reset_at_us - self.tokens * self.token_us - now_us, 0)

    @contextmanager
    def refilling(self) -> Iterator[None]:
        """Disables the fast path during a refill."""
        rule, self.rule = self.rule, None
        try:
            yield
        finally:
            self.rule = rule

    def record_failed_refill(self) -> None:
        """Records that the store was unavailable, so that callers that waited do not retry as well."""
        self.refills += 1
        self.refill_failed = True

    def forget_denial(self) -> None:
        """Forgets the last denial, so that the next call goes to the store. Needs no lock."""
        self._denial = None

    def idle(self, now_us: int) -> bool:
        """Whether its tokens can no longer be spent."""
        return now_us >= self.until_us

    def withdraw(self, now_us: int, *, everything: bool = False) -> int:
        """Takes out expired tokens, or `everything`. Returns how many to give back: none of an ended window."""
        if self.tokens == 0 or (now_us < self.until_us and not everything):
            return 0
        tokens, self.tokens = self.tokens, 0
        if tokens * 2 > self._size:
            self._size //= 2
        return tokens if now_us < self.return_until_us else 0

    def charges(self, amount: int) -> list[Charge]:
        """This lease's chain at a cost of `amount`."""
        return [charge._replace(cost=amount) for charge in self.chain]

    def set_aside(self) -> int:
        """Takes out all tokens, for a caller whose cost they cover in part. Returns how many."""
        tokens, self.tokens = self.tokens, 0
        return tokens

    def put_back(self, tokens: int) -> None:
        """Puts back what was set aside and not used."""
        self.tokens += tokens

    def unspent(self, now_us: int) -> int:
        """How many tokens can still be spent, here or after they were given back."""
        return self.tokens if now_us < max(self.until_us, self.return_until_us) else 0

    def requested(self, cost: int, now_us: int) -> int:
        """How many tokens to request from the store, for a caller that needs `cost` of them."""
        if self._size == 0:
            self._size = 1
        elif self.tokens < cost and now_us - self._taken_us < self._longest_us // 2:
            self._size = min(self._size * 2, self._ceiling)
        return max(self._size, cost)

    def credit(self, amount: int, cost: int, decision: Decision, now_us: int) -> Decision:
        """Credits the `amount` the store granted, less `cost`, and returns the caller's decision. `now_us` was read
        before the store was called, so that every expiry computed from it comes early rather than late."""
        self.refills += 1
        self.refill_failed = False
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
                # The larger margin is for clocks that do not run alike.
                returns_us = min(returns_us, ends_us - max(ends_us // 100, RETURN_MARGIN_US))
        self.until_us, self.return_until_us = now_us + lives_us, now_us + returns_us
        self._taken_us = now_us
        self._denial = None
        self.last = decision
        self.reset_at_us = now_us + decision.reset_after_us
        self.tokens = amount - cost  # older ones were set aside, and are spent or given back
        self.token_us = next(
            (_token_us(charge.rule.spec) for charge in self.chain if charge.rule.plan == decision.plan), 0
        )
        return self.with_tokens(decision, self.tokens)

    def with_tokens(self, decision: Decision, tokens: int) -> Decision:
        """The store's decision, for a process that has so many unspent tokens."""
        token_us = {charge.rule.plan: _token_us(charge.rule.spec) for charge in self.chain}
        return decision.but(
            remaining=decision.remaining + tokens,
            reset_after_us=max(decision.reset_after_us - tokens * token_us.get(decision.plan, 0), 0),
            chain=tuple(
                state._replace(
                    remaining=state.remaining + tokens,
                    reset_after_us=max(state.reset_after_us - tokens * token_us.get(state.plan, 0), 0),
                )
                for state in decision.chain
            ),
        )

    def peek(self, decision: Decision, cost: int, tokens: int) -> Decision:
        """The decision on `cost` if the store's is that on what exceeds the unspent `tokens`."""
        if tokens >= cost:
            chain = tuple(state._replace(allowed=True, retry_after_us=0) for state in decision.chain)
            decision = decision.but(allowed=True, retry_after_us=0, reason=_OK, degraded=False, chain=chain)
        return self.with_tokens(decision, tokens)


RefillLock = Lock
"""A lease's lock, for threads."""


class AsyncRefillLock(asyncio.Lock):
    """A lease's lock, for tasks. It is held until the refill in flight has ended, also if its caller is cancelled."""

    refill: asyncio.Task[Any] | None = None

    async def __aexit__(self, *_: object) -> None:
        if self.refill is None or self.refill.done():
            self.release()
        else:
            self.refill.add_done_callback(lambda _: self.release())


class LocalLeases:
    """A limiter's leases, by key and plans, the least recently refilled first."""

    def __init__(self, policy: LeasePolicy, new_lock: Callable[[], Any]) -> None:
        self._policy = policy
        self.spin_lock = SpinLock() if new_lock is RefillLock else NoLock()
        """Guards the tokens of all leases against other threads. A lease's own lock is held during a refill."""
        self._new_lock = new_lock
        self._lock = Lock()
        self._by_name: OrderedDict[tuple[str, ...], LocalLease] = OrderedDict()
        self._retired: list[LocalLease] = []
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forgets everything, in a forked child. The lock may have been held by a thread that was not forked."""
        self._lock = Lock()
        self._retired.clear()
        self._by_name.clear()

    @staticmethod
    def is_leasable(chain: Sequence[Charge]) -> bool:
        """Whether a chain can be leased."""
        cost = chain[0].cost
        return all(
            charge.cost == cost <= charge.rule.size
            and not charge.rule.shadow
            and not isinstance(charge.rule.spec, UNLEASED)
            for charge in chain
        )

    def unspent(self, chain: Sequence[Charge], now_us: int) -> tuple[LocalLease | None, int]:
        """The lease of a chain, if there is one, and how many tokens it has."""
        lease = self._by_name.get(_name(chain)) if self.is_leasable(chain) else None
        if lease is None or not lease.matches(chain):
            return None, 0
        return lease, lease.unspent(now_us)

    def find(self, chain: Sequence[Charge]) -> LocalLease:
        """The lease of a chain; a new one if its plans have changed."""
        name = _name(chain)
        lease = self._by_name.get(name)
        if lease is not None and lease.matches(chain):
            return lease
        with self._lock:
            before = self._by_name.get(name)
            if before is not None and before.matches(chain):
                return before
            lease = self._by_name[name] = LocalLease(name, chain, self._policy, self._new_lock())
            # Tokens left under plans that only grew go back, by the new arithmetic. Others stay spent: a refund could
            # make room that was never taken, or undo another algorithm's state.
            if before is not None and all(map(_grew, before.chain, chain)):
                before.chain = [charge._replace(cost=1) for charge in chain]
                self._retired.append(before)
            return lease

    def record_refill(self, lease: LocalLease, now_us: int) -> LocalLease | None:
        """Records a refill of `lease`. Returns another lease, removed, whose tokens should go back, if there is one."""
        with self._lock:
            if self._by_name.get(lease.name) is lease:
                self._by_name.move_to_end(lease.name)
            if self._retired:
                return self._retired.pop()
            name, oldest = next(iter(self._by_name.items()), ((), lease))
            if oldest is not lease and (oldest.idle(now_us) or len(self._by_name) > MAX_LEASES):
                del self._by_name[name]
                return oldest
            return None

    def forget(self, chain: Sequence[Charge]) -> None:
        """Drops every lease with tokens of a (plan, key) of `chain`, after a reset of these."""
        with self._lock:
            for lease in self._sharing_state(chain):
                del self._by_name[lease.name]

    def forget_denials(self, chain: Sequence[Charge]) -> None:
        """Forgets the denials of every lease on a (plan, key) of `chain`, after a refund there."""
        with self._lock:
            for lease in self._sharing_state(chain):
                lease.forget_denial()

    def _sharing_state(self, chain: Sequence[Charge]) -> list[LocalLease]:
        cells = {(charge.key, charge.rule.plan) for charge in chain}
        return [
            lease
            for lease in self._by_name.values()
            if any((charge.key, charge.rule.plan) in cells for charge in lease.chain)
        ]

    def clear(self) -> list[LocalLease]:
        """Removes and returns all leases."""
        with self._lock:
            leases = [*self._retired, *self._by_name.values()]
            self._retired.clear()
            self._by_name.clear()
            return leases

    def fast_path(self, rule: Rule, clock: Clock) -> Callable[[str], Decision | None]:
        """The fast path to spend one unit under a rule."""
        leases, plan, monotonic_us = self._by_name, rule.plan, clock.monotonic_us
        try_acquire, release = self.spin_lock.try_acquire, self.spin_lock.release
        monotonic_ns = time.monotonic_ns if isinstance(clock, SystemClock) else lambda: monotonic_us() * 1000

        def spend_one(key: str) -> Decision | None:
            lease = leases.get((key, plan))
            if lease is None or lease.rule is not rule:
                return None
            try:
                try_acquire()
            except BaseException as error:
                if error.__traceback__.tb_next is None and error.args == HELD:  # type: ignore[union-attr]
                    return None
                release(None)
                raise
            try:
                now_us = monotonic_ns() // 1000
                left = lease.tokens - 1
                if left < 0 or now_us >= lease.until_us:
                    return lease.spend(1, now_us)
                lease.tokens = left
                last = lease.last
            finally:
                release(None)
            reset = lease.reset_at_us - left * lease.token_us - now_us
            if reset < 0:
                reset = 0
            return Decision((True, last.remaining + left, last.limit, 0, reset, plan, _OK, False, ()))

        def spend_one_on_a_loop(key: str) -> Decision | None:
            # No other task runs between two awaits, so no lock is needed.
            lease = leases.get((key, plan))
            return None if lease is None or lease.rule is not rule else lease.spend(1, monotonic_us())

        return spend_one if self._new_lock is RefillLock else spend_one_on_a_loop


def _name(chain: Sequence[Charge]) -> tuple[str, ...]:
    return tuple(part for charge in chain for part in (charge.key, charge.rule.plan))


def _token_us(spec: Spec) -> int:
    """How much sooner a plan is as new per unspent token; rounded down, rather late than early."""
    return spec.unit // spec.gain if isinstance(spec, TokenBucket) else 0


def _grew(before: Charge, after: Charge) -> bool:
    """Whether a charge's rule is what it was, or the same algorithm with more room."""
    old, new = before.rule.spec, after.rule.spec
    window = getattr(new, "window_us", None)
    return new.tag == old.tag and new.size >= old.size and window == getattr(old, "window_us", None)
