"""Leases on a store whose master is replaced by one without the last calls: the bound that
docs/explanation/admission.md derives, over any history of calls, outages, closings and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import BreakerPolicy, FixedWindow, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.errors import StoreUnavailable
from paceline.limits.model import Charge, Decision, Spec
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock
from tests.effort import examples
from tests.unit.limits.both import START


class ReplicatedStore:
    """A master, the calls it got, and whether it can be reached."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.down = False
        self._master = MemoryLimitStore(clock=clock)
        self._told: list[tuple[str, Sequence[Charge], int]] = []

    def fail_over(self, lost: int) -> None:
        """A new master that has all but the last `lost` calls."""
        self._told = self._told[: max(len(self._told) - lost, 0)]
        self._master = MemoryLimitStore(clock=self.clock)
        for name, chain, now_us in self._told:
            getattr(self._master, name)(chain, now_us=now_us)

    def decide(self, chain: Sequence[Charge], **_: Any) -> Decision:
        decision: Decision = self._call("decide", chain)
        return decision

    def refund(self, chain: Sequence[Charge], **_: Any) -> None:
        self._call("refund", chain)

    def _call(self, name: str, chain: Sequence[Charge]) -> Any:
        if self.down:
            raise StoreUnavailable("no master")
        self._told.append((name, list(chain), self.clock.monotonic_us()))
        return getattr(self._master, name)(chain)


specs: st.SearchStrategy[Spec] = st.one_of(
    st.builds(TokenBucket, st.sampled_from([5, 20]), st.sampled_from([1, 5])),
    st.builds(FixedWindow, st.sampled_from([5, 20]), st.just("P1D")),
)
leases = st.builds(LeasePolicy, st.sampled_from([0.2, 1.0, 5.0]), st.sampled_from([0.1, 0.5, 1.0]))
calls = st.tuples(st.just("acquire"), st.integers(0, 3), st.integers(1, 3))
steps = st.one_of(
    *[calls] * 12,
    st.tuples(st.just("advance"), st.sampled_from([1000, 50_000, 300_000, 2_000_000]), st.none()),
    st.tuples(st.just("close"), st.integers(0, 3), st.none()),
    st.tuples(st.just("down"), st.none(), st.none()),
)
failures = st.dictionaries(st.integers(0, 100), st.sampled_from([1, 5, 1000]), max_size=2)
"""By the number of a step: how many calls the new master is missing."""


@given(spec=specs, lease=leases, history=st.lists(steps, min_size=50, max_size=150), failures=failures)
@settings(max_examples=examples(80), deadline=None)
def test_each_failover_costs_at_most_one_more_capacity(
    spec: Spec, lease: LeasePolicy, history: Any, failures: dict[int, int]
) -> None:
    clock = FakeClock(START)
    store = ReplicatedStore(clock)
    plan, breaker = Plan("p", spec, on_error="closed"), BreakerPolicy(failures=1_000_000)
    processes = [
        Limiter(store, plans=[plan], lease=lease, clock=clock, breaker=breaker)  # type: ignore[arg-type]
        for _ in range(4)
    ]
    begun_us, admitted, failovers = clock.monotonic_us(), 0, 0
    for step, (name, number, cost) in enumerate(history):
        if step in failures:
            store.fail_over(failures[step])
            failovers += 1
        match name:
            case "acquire":
                admitted += cost * processes[number].acquire("k", "p", cost).allowed
            case "advance":
                clock.advance(us=number)
            case "close":
                processes[number].close()
            case "down":
                store.down = not store.down
    refilled = spec.per_second * (clock.monotonic_us() - begun_us) / 1_000_000 if isinstance(spec, TokenBucket) else 0
    assert admitted <= (1 + failovers) * spec.size + refilled
