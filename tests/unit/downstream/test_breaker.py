"""The downstream's breaker: one state for all processes, one probe at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream.breaker import DownstreamBreaker, next_pause
from paceline.downstream.ports import BreakerStatus

START = datetime(2027, 3, 1, 16, 0, tzinfo=UTC)
TIMEOUT = 3.0


POLICY = BreakerPolicy()


class MemoryBreakerStore:
    """`BreakerStore` by a clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pause: float | None = None
        self.probe_at = 0.0

    async def read(self) -> BreakerStatus | None:
        if self.pause is None:
            return None
        return BreakerStatus("down", START, self.pause, self.probe_at - self.now)

    async def open(self, reason: str, pause: float) -> None:
        self.pause, self.probe_at = pause, self.now + pause

    async def claim_probe(self, hold: float) -> bool:
        if self.pause is None or self.probe_at > self.now:
            return False
        self.probe_at = self.now + max(self.pause, hold)
        return True

    async def close(self) -> None:
        self.pause = None

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def breaker(self, thrown: list[str] | None = None) -> DownstreamBreaker:
        async def throw(reason: str) -> None:
            if thrown is not None:
                thrown.append(reason)

        return DownstreamBreaker(
            self,
            call_timeout=TIMEOUT,
            throw_switch=None if thrown is None else throw,
            pause=self.sleep,
            monotonic=lambda: self.now,
        )


@given(st.lists(st.booleans(), max_size=30))
def test_it_opens_after_a_run_of_failures_and_not_before(answers: list[bool]) -> None:
    async def play() -> None:
        store = MemoryBreakerStore()
        breaker, run = store.breaker(), 0
        for good in answers:
            if good:
                await breaker.record_success(False)
                run = 0
            else:
                await breaker.record_failure("503", False)
                run += 1
            if store.pause is not None:
                assert run == POLICY.failures
                return
            assert run < POLICY.failures

    asyncio.run(play())


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_open_it_lets_one_probe_through_at_a_time_over_all_processes(probes: list[bool]) -> None:
    async def play() -> None:
        store = MemoryBreakerStore()
        here, there = store.breaker(), store.breaker()
        await here.record_failure("401", False, at_once=True)
        pause = store.pause
        for good in probes:
            assert await here.admit(), "it is the probe"
            claimed = store.now
            assert await store.claim_probe(TIMEOUT) is False, "nobody else is"
            assert store.probe_at >= claimed + TIMEOUT, "not even while the probe is on the wire"
            await there.record_failure("503", False)
            await there.record_success(False)
            assert store.pause is not None, "calls from before it opened don't move it"
            if good:
                await here.record_success(True)
                assert not await there.admit()
                return
            await here.record_failure("401", True)
            assert store.pause == next_pause(POLICY, pause) <= POLICY.longest_pause
            pause = store.pause

    asyncio.run(play())


async def test_it_may_throw_the_kill_switch() -> None:
    store, thrown = MemoryBreakerStore(), list[str]()
    await store.breaker(thrown).record_failure("the downstream answered 401", False, at_once=True)
    assert thrown == ["the downstream answered 401"]


def test_pauses_double_up_to_the_longest() -> None:
    pauses = [next_pause(POLICY, None)]
    while pauses[-1] < POLICY.longest_pause:
        pauses.append(next_pause(POLICY, pauses[-1]))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
