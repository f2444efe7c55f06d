"""`Downstream` in one process: its waits, its costs, its switch, and what is refused."""

from __future__ import annotations

import asyncio
import time

import pytest

from paceline import Aimd, BreakerPolicy, Downstream
from paceline.downstream.call import Call
from paceline.errors import ConfigurationError, CostExceedsCapacity, InvalidInput, RateLimitExceeded, StoreUnavailable
from paceline.testing import eventually

LIMITS = {"requests": "5/minute", "tokens": "1000/minute"}


async def left_of(downstream: Downstream, limit: str, key: str = "host") -> int:
    assert downstream._limiter is not None
    return (await downstream._limiter.peek(key, f"{downstream.name}:{limit}")).remaining


async def test_limits_are_charged_together_and_settled_by_the_truth() -> None:
    async with Downstream("llm", limits=LIMITS) as llm:
        async with llm.call({"tokens": 400}) as call:
            assert llm.running == 1
            assert await left_of(llm, "tokens") == 600
            call.settle(tokens=150)
        assert (llm.running, llm.waiting) == (0, 0)
        assert (await left_of(llm, "requests"), await left_of(llm, "tokens")) == (4, 850)
        async with llm.call({"tokens": 100}) as call:
            call.refused()
        assert (await left_of(llm, "requests"), await left_of(llm, "tokens")) == (4, 850)
        async with llm.call({"tokens": 700}, key="other"):
            pass
        assert await left_of(llm, "tokens", "other") == 300


async def test_a_call_without_room_is_refused_after_its_timeout_and_costs_nothing() -> None:
    async with Downstream("llm", limits=LIMITS) as llm:
        async with llm.call({"tokens": 900}):
            pass
        with pytest.raises(RateLimitExceeded) as refused:
            async with llm.call({"tokens": 200}, timeout=0):
                raise AssertionError
        assert refused.value.decision.plan == "llm:tokens"
        assert (await left_of(llm, "requests"), await left_of(llm, "tokens")) == (4, 100)


async def test_a_call_that_was_cut_off_stays_charged_as_reserved() -> None:
    async with Downstream("llm", limits=LIMITS) as llm:
        with pytest.raises(TimeoutError):
            async with llm.call({"tokens": 400}):
                raise TimeoutError
        assert await left_of(llm, "tokens") == 600
        call = llm.call({"tokens": 100})
        with pytest.raises(ValueError, match="ours"):
            async with call:
                raise _settled(call)
        assert await left_of(llm, "tokens") == 590


async def test_the_hard_rate_counts_from_the_answer() -> None:
    async with Downstream("bank", rate="2/PT0.2S", burst=2) as bank:
        starts = []
        for _ in range(5):
            async with bank.call():
                starts.append(time.monotonic())
                await asyncio.sleep(0.05)  # the call
        for first, third in zip(starts, starts[2:], strict=False):
            assert third - first >= 0.25, starts


async def test_departures_are_paced_at_any_latency() -> None:
    async with Downstream("bank", rate="20/second", counted="departure") as bank:
        starts: list[float] = []

        async def pay() -> None:
            async with bank.call():
                starts.append(time.monotonic())
                await asyncio.sleep(0.5)

        began = time.monotonic()
        await asyncio.gather(*(pay() for _ in range(10)))
        assert starts[-1] - starts[0] >= 9 / 20 - 0.005
        assert time.monotonic() - began < 5


async def test_a_paused_downstream_lets_no_call_leave() -> None:
    async with Downstream("bank", rate="100/second") as bank:
        await bank.pause("the bank asked for it")
        with pytest.raises(RateLimitExceeded):
            async with bank.call(timeout=0.1):
                raise AssertionError
        state = await bank.state()
        assert (state.paused, state.rate, state.waiting) == ("the bank asked for it", "100/second", 0)
        waiting = asyncio.create_task(_one(bank))
        await bank.resume()
        await asyncio.wait_for(waiting, 5)


async def test_a_pause_that_the_other_side_asked_for_holds_for_its_key_alone() -> None:
    async with Downstream("api", rate="100/second") as api:
        await api.learn("a", 429, {"Retry-After": "60"}.get)
        with pytest.raises(RateLimitExceeded):
            async with api.call(key="a", timeout=0.1):
                raise AssertionError
        async with api.call(key="b", timeout=5):
            pass
        assert 58 < (await api.state()).pauses["a"] <= 60
        await api.learn("c", 429, {"Retry-After": "99999999"}.get)
        assert (await api.state()).pauses["c"] <= 3600


async def test_the_breaker_opens_by_failures_of_the_connection_and_a_probe_closes_it() -> None:
    policy = BreakerPolicy(failures=2, first_pause=0.1)
    async with Downstream("bank", rate="1000/second", breaker=policy, call_timeout=0.1) as bank:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                async with bank.call():
                    raise ConnectionError("no route")
        state = await bank.state()
        assert state.breaker is not None
        assert state.breaker.reason == "no route"
        async with bank.call(timeout=5):
            pass
        assert (await bank.state()).breaker is None


async def test_rate_and_limits_are_both_kept() -> None:
    async with Downstream("api", rate="100/second", limits={"tokens": "100/minute"}) as api:
        async with api.call({"tokens": 100}):
            pass
        with pytest.raises(RateLimitExceeded):
            async with api.call({"tokens": 1}, timeout=0.2):
                raise AssertionError
        async with api.call({"tokens": 100}, key="other", timeout=5):
            pass


async def test_wrong_values_name_their_field() -> None:
    for options, field in (
        ({}, "rate"),
        ({"rate": "often"}, "rate"),
        ({"rate": "5/second burst 3"}, "rate"),
        ({"rate": "5/second", "burst": 0}, "burst"),
        ({"rate": "5/second", "counted": "arrival"}, "counted"),
        ({"rate": "5/second", "call_timeout": -1}, "call_timeout"),
        ({"limits": {"tokens": "many"}}, "limits.tokens"),
        ({"rate": "5/second", "adapt": Aimd(floor="6/second", ceiling="9/second")}, "adapt.floor"),
    ):
        with pytest.raises(ConfigurationError) as wrong:
            Downstream("bank", **options)
        assert wrong.value.field == field
    with pytest.raises(ConfigurationError, match="name"):
        Downstream("{bank}", rate="5/second")
    async with Downstream("llm", limits=LIMITS) as llm:
        with pytest.raises(InvalidInput, match="no limit 'token'"):
            llm.call({"token": 1})
        with pytest.raises(InvalidInput, match=r"costs\.tokens"):
            llm.call({"tokens": 0})
        with pytest.raises(CostExceedsCapacity, match="llm:tokens"):
            llm.call({"tokens": 1001})
        async with llm.call() as call:
            with pytest.raises(InvalidInput, match="words"):
                call.settle(words=1)
            with pytest.raises(InvalidInput, match="tokens"):
                call.settle(tokens=-1)


def _no_field(name: str) -> str | None:
    return None


def _settled(call: Call) -> ValueError:
    """An error of our own, after the answer said what it had cost."""
    call.settle(tokens=10)
    return ValueError("ours")


async def _one(downstream: Downstream) -> None:
    async with downstream.call(timeout=5):
        pass


async def test_an_operator_lowers_the_rate_and_not_above_the_programs_own() -> None:
    async with Downstream("bank", rate="100/second", counted="departure") as bank:
        await bank.set_rate("10/second")
        assert (await bank.state()).effective == 10
        began = time.monotonic()
        for _ in range(4):
            async with bank.call():
                started = time.monotonic()
        assert started - began >= 2 / 10
        for wrong in ("101/second", "often"):
            with pytest.raises(ConfigurationError) as refused:
                await bank.set_rate(wrong)
            assert refused.value.field == "rate"
        await bank.set_rate(None)
        assert (await bank.state()).effective == 100


async def test_the_rate_falls_for_all_when_calls_are_refused() -> None:
    adapt = Aimd(floor="50/second", ceiling="200/second")
    async with Downstream("api", adapt=adapt) as api:
        assert (await api.state()).effective == 100
        for number in range(40):
            async with api.call() as call:
                await call.responded(429 if number % 2 else 200, _no_field)
        for _ in range(200):
            if (await api.state()).totals.calls == 40:
                break
            await asyncio.sleep(0.01)
        state = await api.state()
        assert (state.totals.calls, state.totals.throttled) == (40, 20)
        assert state.effective is not None
        assert 50 <= state.effective < 100


async def test_what_calls_became_is_counted() -> None:
    bank = Downstream("bank", rate="1000/second", call_timeout=0.1)
    async with bank:
        async with bank.call() as call:
            await call.responded(500, _no_field)
        with pytest.raises(TimeoutError):
            async with bank.call():
                raise TimeoutError
        await bank._observations.flush()
        totals = (await bank.state()).totals
        assert (totals.calls, totals.throttled, totals.failed, totals.unknown) == (2, 0, 1, 1)


async def test_a_call_that_only_waits_lets_no_adaptive_rate_rise() -> None:
    async with Downstream("api", adapt=Aimd(floor="5/second", ceiling="80/second")) as api:
        await api.pause()
        waiting = asyncio.create_task(_one(api))
        await eventually(lambda: api.waiting == 1)
        for _ in range(3):
            await api._observations.flush()
        assert (await api.state()).effective == 20
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_reservation_is_remembered_for_as_long_as_its_cost_counts() -> None:
    async with Downstream("llm", limits={"requests": "5/minute", "tokens": "1000/hour"}) as llm, llm.call():
        assert llm._limiter is not None
        (record,) = llm._limiter.store.store._holds._by_name.values()
        assert record.expires_us <= time.monotonic_ns() // 1000 + 3600 * 1_000_000


async def test_while_the_store_is_away_no_call_leaves_and_the_error_says_so() -> None:
    for options in ({"rate": "100/second"}, {"limits": LIMITS}):
        async with Downstream("bank", "redis://127.0.0.1:1", **options) as bank:
            with pytest.raises(StoreUnavailable, match="no call to 'bank' leaves"):
                async with bank.call(timeout=0.3):
                    raise AssertionError
            assert (bank.running, bank.waiting) == (0, 0)
