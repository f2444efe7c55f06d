"""The gate before the bank's API: which permits a call holds, and for how long."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.downstream import permits
from paceline.downstream.permits import Grant, PermitPolicy, Permits
from paceline.downstream.rate_gate import MOST_PERMITS, PREPARATION, LimitAt, PermitRateGate, permit_policy, spread
from paceline.downstream.stores.sql_permits import SqlPermitStore
from paceline.sql.databases import database
from paceline_payments.downstream.client import HttpDownstream
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.downstream.simulator import (
    Behaviour,
    Simulator,
    SimulatorTransport,
    peak_per_second,
)
from paceline_payments.ports import DownstreamBusy
from tests.unit.apps.payments.downstream.test_client import answering, client_of, payment


class CountedPermits:
    """`PermitStore` in this process, by a clock the test moves."""

    def __init__(self, policy: PermitPolicy) -> None:
        self.policy = policy
        self.state = Permits({})
        self.now = 0.0
        self.slow = 0.0

    async def take(self, holder: str, hold: float) -> Grant:
        self.state, grant = permits.take(self.state, self.policy, holder, round(hold * 1e6), round(self.now * 1e6))
        self.now += self.slow
        return grant

    async def free(self, holder: str, at_us: int) -> None:
        self.state = permits.free(self.state, holder, at_us)

    async def close(self) -> None: ...

    async def pause(self, seconds: float) -> None:
        self.now += seconds

    def held(self) -> list[float]:
        return sorted(free_us / 1e6 for free_us in self.state.held.values() if free_us > self.now * 1e6)

    def gate(self, limit_at: LimitAt = "answer") -> PermitRateGate:
        return PermitRateGate(self, call_timeout=10.0, limit_at=limit_at, pause=self.pause, monotonic=lambda: self.now)


async def test_a_permit_is_held_until_a_second_after_the_answer() -> None:
    store = CountedPermits(permit_policy(2, 2))
    gate = store.gate()
    permit = await gate.acquire()
    assert store.held() == [pytest.approx(14.0)], "the longest call, a second, and some lateness"
    store.now += 3
    permit.release()
    await gate.close()
    assert store.held() == [pytest.approx(4.0, abs=0.01)]


@pytest.mark.parametrize(
    ("outcome", "held"),
    [(503, [1.0]), (httpx.ConnectError("refused"), []), (httpx.ReadError("reset"), [14.0])],
    ids=["answered", "never sent", "not answered"],
)
async def test_a_call_that_may_be_on_its_way_keeps_its_permit(outcome: int | Exception, held: list[float]) -> None:
    """After a reset the request may still be in flight: it may arrive until the longest call would be over."""
    store = CountedPermits(permit_policy(5, 5))
    gate, (transport, _) = store.gate(), answering(outcome)
    with pytest.raises(DownstreamBusy):
        await client_of(transport, gate).inquire(payment())
    await gate.close()
    assert store.held() == [pytest.approx(until) for until in held]


async def test_counted_at_the_departure_a_permit_is_held_until_a_second_after_its_call_left() -> None:
    store = CountedPermits(permit_policy(2, 2))
    gate = store.gate("departure")
    permit = await gate.acquire()
    assert store.held() == [pytest.approx(14.0)], "until it has left, it may leave at any moment"
    store.now += 0.03
    await permit.confirm()
    permit.left()
    await gate.close()
    assert store.held() == [pytest.approx(1.03, abs=0.01)]
    store.now += 0.5
    permit.release()
    await gate.close()
    assert store.held() == [pytest.approx(1.03, abs=0.01)], "the answer does not matter"


async def test_a_call_is_prepared_before_its_instant_and_leaves_at_it() -> None:
    store = CountedPermits(permit_policy(10, 1))
    gate = store.gate("departure")
    await (await gate.acquire()).confirm()
    second = await gate.acquire()
    assert store.now == pytest.approx(0.1 - PREPARATION)
    store.now += PREPARATION / 2
    await second.confirm()
    assert store.now == pytest.approx(0.1)


@pytest.mark.parametrize(("held_up", "until"), [(0.05, 14.0), (2.9, 14.0), (3.1, 17.1), (30.0, 44.0)])
async def test_a_call_held_up_before_it_leaves_has_its_permit_for_the_whole_call(held_up: float, until: float) -> None:
    store = CountedPermits(permit_policy(5, 5))
    gate = store.gate()
    permit = await gate.acquire()
    store.now += held_up
    await permit.confirm()
    assert store.held() == [pytest.approx(until)]
    permit.give_back()
    await gate.close()
    assert store.held() == []


async def test_a_process_that_stands_still_before_the_first_byte_keeps_its_place() -> None:
    """The busy machine that let 56 calls leave in a second of 50: others took the places of calls that left late."""
    store = CountedPermits(permit_policy(1, 1))
    gate = store.gate("departure")
    permit = await gate.acquire()
    await permit.confirm()
    store.now += 2.5
    waiting = await store.take("another", 1.0)
    assert waiting.wait_us > 0, "the first one may leave at any moment"
    permit.left()
    await gate.close()
    assert store.held() == [pytest.approx(3.5, abs=0.01)]


async def test_a_slow_store_costs_no_rate() -> None:
    """The report of a free permit arrives late, but its time counts."""
    store = CountedPermits(permit_policy(50, 1))
    store.slow = 0.3
    gate = store.gate("departure")
    permit = await gate.acquire()
    await permit.confirm()
    permit.left()
    left_at = store.now
    store.now += 0.3
    await gate.close()
    assert store.held() == [pytest.approx(left_at + 1.0, abs=0.01)]


async def test_who_gives_up_before_its_turn_leaves_no_permit_behind() -> None:
    store = CountedPermits(permit_policy(5, 1))
    gate = store.gate()
    await gate.acquire()
    before = store.held()

    async def cancelled(seconds: float) -> None:
        raise asyncio.CancelledError

    gate._pause = cancelled
    with pytest.raises(asyncio.CancelledError):
        await gate.acquire()
    await gate.close()
    assert store.held() == before


async def test_a_burst_through_the_gate_never_breaks_the_banks_limit() -> None:
    """Real time, one and a half seconds: the bank's own limit is the judge, with answers of very different speed."""
    bank = Simulator(Behaviour(tps=20, latency_ms=1))
    speeds = iter([0.0, 0.15, 0.01, 0.4, 0.05] * 20)

    async def lag(_seconds: float) -> None:
        await asyncio.sleep(next(speeds))

    store = SqlPermitStore(await database("memory://"), "bank", permit_policy(20, 20), longest_hold=11.0)
    gate = PermitRateGate(store, call_timeout=10.0)
    connection = DownstreamConnection("http://bank", attempts=1)
    client = HttpDownstream(connection, gate, transport=SimulatorTransport(bank, pause=lag))
    await asyncio.gather(*(client.pay(payment(number)) for number in range(45)))
    await client.close()
    await gate.close()
    await store.close()
    assert [call.status for call in bank.calls] == [201] * 45
    assert peak_per_second(call.at_us for call in bank.calls) <= 20


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_rate_of_too_many_permits_is_a_part_of_it_in_a_shorter_window(limit: int, seconds: int) -> None:
    number, window = spread(limit, timedelta(seconds=seconds))
    parts = round(seconds / window)
    assert 0 < number <= MOST_PERMITS
    assert number * parts <= limit < (number + 1) * parts, "all parts together, and hardly fewer"


def test_most_rates_are_what_they_say() -> None:
    assert spread(50, timedelta(seconds=1)) == (50, 1.0)
    assert spread(1_000_000, timedelta(days=1)) == (10_000, 864.0)
