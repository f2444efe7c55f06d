"""While the store can't be reached: each plan's policy, the breaker, recovery. No call is ever repeated."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

import pytest

from paceline import AsyncLimiter, BreakerPolicy, FixedWindow, Limiter, Plan, TokenBucket
from paceline.errors import ConfigurationError, StoreRefused, StoreUnavailable
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from tests.unit.limits.both import World

BREAKER = BreakerPolicy(failures=2, first_pause=1)
TEN = TokenBucket(10, 1)
PLANS = [
    Plan("default", TEN),
    Plan("open", TEN, on_error="open"),
    Plan("closed", TEN, on_error="closed"),
    Plan("fallback", FixedWindow(2, "PT1M"), on_error="fallback"),
    Plan("shadow", TEN, on_error="closed", shadow=True),
]


@pytest.fixture
def limiter(world: World) -> Any:
    return world.limiter(plans=PLANS, breaker=BREAKER)


async def test_peer_bug_11_store_down_is_policy_not_an_error(limiter: Any, world: World) -> None:
    world.store.down = True
    answers = {name: await limiter.acquire("u", name) for name in ("default", "open", "closed", "fallback")}
    assert {name: (answer.allowed, answer.reason) for name, answer in answers.items()} == {
        "default": (True, "FAIL_OPEN"),
        "open": (True, "FAIL_OPEN"),
        "closed": (False, "FAIL_CLOSED"),
        "fallback": (True, "FALLBACK"),
    }
    assert all(answer.degraded for answer in answers.values())
    assert answers["closed"].retry_after > 0


async def test_a_limiters_own_policy_is_for_plans_that_have_none(world: World) -> None:
    world.store.down = True
    limiter = world.limiter(plans=PLANS, on_error="closed")
    assert (await limiter.acquire("u", "default")).reason == "FAIL_CLOSED"
    assert (await limiter.acquire("u", "open")).reason == "FAIL_OPEN"


async def test_a_chain_is_as_strict_as_its_strictest_plan(limiter: Any, world: World) -> None:
    world.store.down = True
    assert (await limiter.acquire("u", ["open", "closed", "fallback"])).reason == "FAIL_CLOSED"
    assert (await limiter.acquire("u", ["open", "fallback"])).reason == "FALLBACK"
    assert (await limiter.acquire("u", ["open", "shadow"])).reason == "FAIL_OPEN"
    assert (await limiter.acquire("u", ["fallback", "shadow"])).reason == "FALLBACK"
    assert (await limiter.acquire("u", ["shadow"])).allowed


async def test_a_fallback_store_still_limits(limiter: Any, world: World) -> None:
    world.store.down = True
    answers = [await limiter.acquire("u", "fallback") for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert {answer.reason for answer in answers} == {"FALLBACK"}


async def test_a_fallback_that_fails_too_is_closed(world: World) -> None:
    other = World(world.kind)
    world.store.down = other.store.down = True
    fallback = other.store if world.kind == "sync" else other.async_store
    limiter = world.limiter(plans=PLANS, fallback=fallback)
    assert (await limiter.acquire("u", "fallback")).reason == "FAIL_CLOSED"


async def test_a_given_fallback_is_used(world: World) -> None:
    store = MemoryLimitStore(clock=world.clock)
    fallback: Any = store if world.kind == "sync" else AsyncMemoryLimitStore(store)
    limiter = world.limiter(plans=PLANS, fallback=fallback)
    world.store.down = True
    await limiter.acquire("u", "fallback")
    assert len(store) == 1


async def test_an_outage_costs_a_few_calls_and_recovery_is_automatic(limiter: Any, world: World) -> None:
    world.store.down = True
    for _ in range(50):
        assert (await limiter.acquire("u", "open")).reason == "FAIL_OPEN"
    assert world.store.calls == ["decide"] * 2
    assert limiter.breaker_state == "open"
    world.clock.advance(1)
    for _ in range(50):
        await limiter.acquire("u", "open")
    assert world.store.calls == ["decide"] * 3
    world.store.down = False
    world.clock.advance(2)
    assert (await limiter.acquire("u", "open")).reason == "OK"
    assert limiter.breaker_state == "closed"
    assert world.watcher.breaker == ["open", "half_open", "open", "half_open", "closed"]
    assert ("decide", True) in world.watcher.store_calls
    assert ("decide", False) in world.watcher.store_calls


async def test_a_store_that_refuses_is_an_error_and_no_outage(limiter: Any, world: World) -> None:
    world.store.down = True
    for _ in range(3):
        assert (await limiter.acquire("u", "open")).reason == "FAIL_OPEN"
    world.store.down, world.store.refuses = False, True
    world.clock.advance(1)
    # The breaker's one probe is answered, with a refusal: from then on every call gets it.
    for name in ("open", "closed", "fallback", "open"):
        with pytest.raises(StoreRefused, match="redis_url"):
            await limiter.acquire("u", name)
    with pytest.raises(StoreRefused):
        await limiter.refund("u", "open")
    assert limiter.breaker_state == "closed"
    assert world.watcher.store_calls[-1] == ("refund", True)
    world.store.refuses = False
    assert (await limiter.acquire("u", "open")).reason == "OK"


async def test_giving_back_and_resetting_are_no_matter_of_policy(limiter: Any, world: World) -> None:
    world.store.down = True
    for call in (limiter.refund, limiter.reset):
        with pytest.raises(StoreUnavailable):
            await call("u", "open")
    calls = len(world.store.calls)
    with pytest.raises(StoreUnavailable, match="can't be reached now"):
        await limiter.settle("u", "open", "some-id", 1)
    assert len(world.store.calls) == calls


async def test_a_reservation_by_policy_has_nothing_to_settle(limiter: Any, world: World) -> None:
    world.store.down = True
    reservation = await limiter.reserve("u", "open", 5)
    assert reservation
    world.store.down = False
    assert not await reservation.settle(1)
    assert "settle" not in world.store.calls


async def test_a_call_that_hangs_is_cut_off_and_not_repeated() -> None:
    world = World("async")
    world.async_store.hangs = True
    limiter = world.limiter(plans=PLANS, deadline=0.01)
    assert (await limiter.acquire("u", "closed")).reason == "FAIL_CLOSED"
    assert world.store.calls == []
    assert world.watcher.store_calls == [("decide", True)]


async def test_what_was_let_through_is_logged_with_its_count_and_not_each_time(
    limiter: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if "let through" in record.getMessage()]

    world.store.down = True
    for _ in range(50):
        await limiter.acquire("u", "open")
    await limiter.acquire("u", "closed")
    await limiter.peek("u", "open")
    assert [message.split(" (")[0] for message in logged()] == ["1 decision let through by on_error=open"]
    world.clock.advance(seconds=11)
    await limiter.acquire("u", "default")
    assert logged()[1].startswith("50 decisions let through by on_error=open in the last 11 s (plan 'default')")
    await limiter.acquire("u", "open")
    assert len(logged()) == 2
    world.store.down = False
    world.clock.advance(seconds=60)
    assert not (await limiter.acquire("u", "open")).degraded
    assert logged()[2].startswith("1 decision let through"), "the rest is told when the store answers again"
    await limiter.acquire("u", "open")
    assert len(logged()) == 3


async def test_what_was_let_through_is_logged_when_the_limiter_is_closed(
    limiter: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.down = True
    for _ in range(50):
        await limiter.acquire("u", "open")
    await limiter.close()
    assert [record.getMessage().split(" decision")[0] for record in caplog.records if "let through" in record.msg] == [
        "1",
        "49",
    ]


class Raising:
    """An observer with a mistake in it."""

    def _raise(self, *_: Any) -> None:
        raise KeyError("plan")

    decided = store_called = breaker_moved = leased = _raise


async def test_an_observer_that_raises_charges_nobody_twice(world: World, caplog: pytest.LogCaptureFixture) -> None:
    limiter = world.limiter(plans=PLANS, breaker=BREAKER, observer=Raising())
    assert [(await limiter.acquire("u", "open")).remaining for _ in range(3)] == [9, 8, 7]
    assert "observer" in caplog.text
    world.store.down = True
    for _ in range(4):
        assert (await limiter.acquire("u", "closed")).reason == "FAIL_CLOSED"


async def test_an_observer_that_raises_at_every_decision_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = AsyncLimiter("memory://", plans=[Plan("p", FixedWindow(limit=1000, window="PT1H"))], observer=Raising())
    for _ in range(100):
        await limiter.acquire("u", "p")
    assert len([record for record in caplog.records if "raised in decided" in record.getMessage()]) == 7


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_an_observer_that_raises_charges_nobody_twice_in_memory(kind: Any) -> None:
    limiter = kind(plans=[Plan("p", FixedWindow(10, "P1D"))], observer=Raising())

    async def remaining() -> int:
        decision = limiter.acquire("u", "p")
        return int((await decision if isawaitable(decision) else decision).remaining)

    assert [await remaining() for _ in range(4)] == [9, 8, 7, 6]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("wrong", [None, 5, object(), ["redis://localhost"]])
def test_what_is_no_store_is_refused_at_once(kind: Any, wrong: Any) -> None:
    for option in ("store", "fallback"):
        with pytest.raises(ConfigurationError, match=f"^{option}: "):
            kind(**{option: wrong})


def test_a_limiter_for_threads_refuses_a_store_for_event_loops() -> None:
    with pytest.raises(ConfigurationError, match=r"^store: .*AsyncLimiter"):
        Limiter(AsyncMemoryLimitStore())  # type: ignore[arg-type]
