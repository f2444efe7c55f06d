"""Concurrency limits: places in flight, renewed while their block runs, free when it ends or its process dies."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from paceline import AsyncLimiter, Concurrency, FixedWindow, Limiter, Plan
from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits import headers
from paceline.limits.model import Reason
from paceline.limits.plan_documents import document_of, plan_from
from tests.unit.limits.both import World

PLACES = Plan("exports", Concurrency(2, expires="PT30S"))
DAILY = Plan("daily", FixedWindow(5, "P1D"))


class Manual:
    """Renewals that a test starts itself."""

    def __init__(self) -> None:
        self.renew: list[Callable[[], Any]] = []
        self.every: list[float] = []

    def start(self, renew: Callable[[], Any], every: float) -> Any:
        self.renew.append(renew)
        self.every.append(every)
        renewals = self.renew

        class Handle:
            def cancel(self) -> None:
                if renew in renewals:
                    renewals.remove(renew)

        return Handle()

    async def run(self) -> None:
        for renew in list(self.renew):
            result = renew()
            if result is not None:
                await result

    def close(self) -> None: ...


def itself(limiter: Any) -> Any:
    return getattr(limiter, "limiter", limiter)


def manual(limiter: Any) -> Manual:
    itself(limiter)._renewals = renewals = Manual()
    return renewals


class Block:
    """A block of either limiter that a test enters and leaves."""

    def __init__(self, limiter: Any, *plans: str, key: str = "u", cost: int = 1) -> None:
        self.held = itself(limiter).hold(key, list(plans), cost)

    async def enter(self) -> Any:
        return await self.held.__aenter__() if hasattr(self.held, "__aenter__") else self.held.__enter__()

    async def leave(self) -> None:
        if hasattr(self.held, "__aexit__"):
            await self.held.__aexit__(None, None, None)
        else:
            self.held.__exit__(None, None, None)


@pytest.mark.parametrize("on", ["switched", "memory"])
async def test_so_many_at_once_and_a_place_is_free_when_its_block_ends(world: World, on: str) -> None:
    limiter = world.limiter(on=on, plans=[PLACES, DAILY])
    manual(limiter)
    blocks = [Block(limiter, "exports", "daily") for _ in range(3)]
    decisions = [await block.enter() for block in blocks]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert (decisions[2].plan, decisions[2].retry_after) == ("exports", 30)
    await blocks[2].leave()  # it had no place to give back
    assert not (await limiter.peek("u", "exports")).allowed
    await blocks[0].leave()
    assert (await limiter.peek("u", "exports")).remaining == 1
    # The other plans of the chain were charged, and stay so.
    assert (await limiter.peek("u", "daily")).remaining == 3
    await blocks[1].leave()
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_a_living_holder_keeps_its_place_and_a_dead_one_loses_it(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    living, dead = Block(limiter, "exports"), Block(limiter, "exports")
    await living.enter()
    await dead.enter()
    assert renewals.every == [10, 10]
    renewals.renew.pop()  # its process is killed
    for _ in range(6):
        world.clock.advance(10)
        await renewals.run()
    assert (await limiter.peek("u", "exports")).remaining == 1
    await living.leave()
    assert (await limiter.peek("u", "exports")).remaining == 2
    await dead.leave()  # it was only frozen: it gives back nothing that is others' by now
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_a_holder_that_was_frozen_takes_no_place_of_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    frozen = Block(limiter, "exports")
    await frozen.enter()
    world.clock.advance(31)
    others = [Block(limiter, "exports") for _ in range(2)]
    assert [(await block.enter()).allowed for block in others] == [True, True]
    with caplog.at_level(logging.WARNING):
        await renewals.renew[0]() if itself(limiter).__class__ is AsyncLimiter else renewals.renew[0]()
    assert "was lost while its call goes on" in caplog.text
    await frozen.leave()
    assert (await limiter.peek("u", "exports")).remaining == 0
    await others[0].leave()
    assert (await limiter.peek("u", "exports")).remaining == 1


async def test_a_store_that_forgot_gets_the_place_again(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    block = Block(limiter, "exports")
    await block.enter()
    world.store.inner.close()  # loses all data
    assert (await limiter.peek("u", "exports")).remaining == 2
    await renewals.run()
    assert (await limiter.peek("u", "exports")).remaining == 1
    await block.leave()
    assert (await limiter.peek("u", "exports")).remaining == 2


@pytest.mark.parametrize("before", ["renew", "decide"])
async def test_a_block_that_ends_while_it_is_renewed_leaves_no_place(world: World, before: str) -> None:
    """The block ends just before the store renews its place, or takes it again."""
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    block = Block(limiter, "exports")
    await block.enter()
    if before == "decide":
        world.store.inner.close()  # loses all data, so that the renewal takes the place again
    store: Any = world.store if world.kind == "sync" else world.async_store
    call = getattr(store, before)

    async def leave_before(*args: Any, **options: Any) -> Any:
        setattr(store, before, call)
        await block.leave()
        return await call(*args, **options)

    def leave_first(*args: Any, **options: Any) -> Any:
        setattr(store, before, call)
        block.held.__exit__(None, None, None)
        return call(*args, **options)

    setattr(store, before, leave_first if world.kind == "sync" else leave_before)
    await renewals.run()
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_a_place_that_is_taken_again_as_its_block_is_left_is_given_back() -> None:
    """The store executes the request although its caller was cancelled."""
    world, executes, asked = World("async"), asyncio.Event(), asyncio.Event()
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    block = Block(limiter, "exports")
    await block.enter()
    world.store.inner.close()
    decide = world.async_store.decide

    async def decide_later(*args: Any, **options: Any) -> Any:
        asked.set()
        await executes.wait()
        return await decide(*args, **options)

    async def decide_in_any_case(*args: Any, **options: Any) -> Any:
        world.async_store.decide = decide  # type: ignore[method-assign]
        return await asyncio.shield(asyncio.create_task(decide_later(*args, **options)))

    world.async_store.decide = decide_in_any_case  # type: ignore[method-assign]
    renewal = asyncio.create_task(renewals.renew[0]())
    await asked.wait()
    block.held._renewal = renewal
    await block.leave()
    executes.set()
    await limiter.close()
    await asyncio.sleep(0)
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_a_lowered_limit_ends_no_call_in_flight(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    blocks = [Block(limiter, "exports") for _ in range(2)]
    for block in blocks:
        await block.enter()
    itself(limiter).replace_plans([Plan("exports", Concurrency(1, expires="PT30S"))])
    world.clock.advance(20)
    await renewals.run()
    world.clock.advance(20)
    assert not (await limiter.peek("u", "exports")).allowed
    for block in blocks:
        await block.leave()
    assert (await limiter.peek("u", "exports")).remaining == 1


@pytest.mark.parametrize(
    ("policy", "reason"),
    [("open", Reason.FAIL_OPEN), ("closed", Reason.FAIL_CLOSED), ("fallback", Reason.FALLBACK)],
)
async def test_an_outage_is_decided_by_policy(world: World, policy: str, reason: Reason) -> None:
    limiter = world.limiter(plans=[PLACES], on_error=policy)
    renewals = manual(limiter)
    world.store.down = True
    blocks = [Block(limiter, "exports") for _ in range(3)]
    decisions = [await block.enter() for block in blocks]
    assert {decision.reason for decision in decisions} == {reason}
    assert len(renewals.renew) == (2 if policy == "fallback" else 0)
    for block in blocks:
        await block.leave()
    if policy == "fallback":
        assert (await Block(limiter, "exports").enter()).allowed


async def test_a_store_that_is_away_when_the_block_ends_breaks_nothing(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    renewals = manual(limiter)
    block = Block(limiter, "exports")
    await block.enter()
    world.store.down = True
    await renewals.run()
    await block.leave()
    world.store.down = False
    assert (await limiter.peek("u", "exports")).remaining == 1
    world.clock.advance(30)
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_acquire_takes_a_place_until_it_expires_and_refund_gives_it_back(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    assert [(await limiter.acquire("u", "exports")).allowed for _ in range(3)] == [True, True, False]
    await limiter.refund("u", "exports")
    assert (await limiter.acquire("u", "exports")).allowed
    world.clock.advance(30)
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_a_block_that_raises_or_is_cancelled_gives_its_place_back() -> None:
    async with AsyncLimiter(plans=[PLACES]) as limiter:
        with pytest.raises(ZeroDivisionError):
            async with limiter.hold("u", "exports"):
                raise ZeroDivisionError
        entered = asyncio.Event()

        async def work() -> None:
            async with limiter.hold("u", "exports"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        assert (await limiter.peek("u", "exports")).remaining == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await limiter.peek("u", "exports")).remaining == 2


async def test_a_caller_cancelled_while_the_store_decides_leaves_no_place(world: World) -> None:
    if world.kind == "sync":
        pytest.skip("only tasks are cancelled")
    limiter = world.limiter(plans=[PLACES])
    manual(limiter)
    decide = world.async_store.decide
    decided = asyncio.Event()

    async def slow(*args: Any, **options: Any) -> Any:
        result = await decide(*args, **options)
        decided.set()
        await asyncio.sleep(0)
        await asyncio.Event().wait()
        return result

    world.async_store.decide = slow  # type: ignore[method-assign]
    task = asyncio.create_task(Block(limiter, "exports").enter())
    await decided.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.async_store.decide = decide  # type: ignore[method-assign]
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_hold_is_for_concurrency_limits(world: World) -> None:
    limiter = world.limiter(plans=[DAILY])
    with pytest.raises(InvalidInput, match="use acquire"):
        await Block(limiter, "daily").enter()


async def test_exactly_so_many_of_64_callers_at_once() -> None:
    async with AsyncLimiter(plans=[Plan("exports", Concurrency(8))]) as limiter:
        inside = peak = admitted = 0

        async def call() -> None:
            nonlocal inside, peak, admitted
            for _ in range(20):
                async with limiter.hold("u", "exports") as decision:
                    if decision.allowed:
                        inside += 1
                        peak, admitted = max(peak, inside), admitted + 1
                        await asyncio.sleep(0)
                        inside -= 1
                await asyncio.sleep(0)

        await asyncio.gather(*(call() for _ in range(64)))
        assert peak == 8
        assert admitted > 64
        assert (await limiter.peek("u", "exports")).remaining == 8


def test_exactly_so_many_threads_at_once() -> None:
    with Limiter(plans=[Plan("exports", Concurrency(3))]) as limiter:
        lock = threading.Lock()
        inside = peak = 0
        all_in = threading.Barrier(3)

        def call() -> None:
            nonlocal inside, peak
            with limiter.hold("u", "exports") as decision:
                assert decision.allowed
                with lock:
                    inside += 1
                    peak = max(peak, inside)
                all_in.wait(10)
                with lock:
                    inside -= 1

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert peak == 3
        assert limiter.peek("u", "exports").remaining == 3


@pytest.mark.parametrize(
    ("limit", "expires", "field"),
    [
        (0, "PT30S", "limit"),
        (100_001, "PT30S", "limit"),
        (5, "PT0S", "expires"),
        (5, "soon", "expires"),
        (5, "P2D", "expires"),
    ],
)
def test_what_is_no_concurrency_limit_is_refused(limit: int, expires: str, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Concurrency(limit, expires)
    assert caught.value.field == field


def test_documents() -> None:
    document = {"algorithm": "concurrency", "limit": 5, "expires": "PT30S"}
    assert plan_from("p", {"algorithm": "concurrency", "limit": 5}) == Plan("p", Concurrency(5))
    assert document_of(Plan("p", Concurrency(5))) == document


def test_headers_say_what_the_unit_is() -> None:
    assert headers.policy_item("exports", Concurrency(5)) == '"exports";q=5;qu="concurrent-requests"'


async def test_places_are_held_without_a_block(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    manual(limiter)
    held = itself(limiter).hold("u", "exports")
    entered = held.enter()
    assert (await entered if asyncio.iscoroutine(entered) else entered).allowed
    assert (await limiter.peek("u", "exports")).remaining == 1
    for _ in range(2):
        left = held.leave()
        if left is not None:
            await left
    assert (await limiter.peek("u", "exports")).remaining == 2


async def test_hold_waits_for_a_place_until_its_timeout(world: World) -> None:
    limiter = world.limiter(plans=[PLACES])
    manual(limiter)
    for _ in range(2):
        await Block(limiter, "exports").enter()
    for timeout, allowed in ((10, False), (30, True)):  # the world's pauses let its clock pass
        waiting = Block(limiter, "exports")
        waiting.held = itself(limiter).hold("u", "exports", timeout=timeout)
        assert (await waiting.enter()).allowed is allowed
        await waiting.leave()


async def test_cancelling_held_places_gives_all_of_the_charge_back(world: World) -> None:
    both = Plan("both", (Concurrency(2), FixedWindow(5, "P1D")))
    limiter = world.limiter(plans=[both])
    manual(limiter)
    block = Block(limiter, "both")
    await block.enter()
    assert [state.remaining for state in (await limiter.peek("u", "both")).states] == [1, 4]
    cancelled = block.held.cancel()
    if cancelled is not None:
        await cancelled
    assert [state.remaining for state in (await limiter.peek("u", "both")).states] == [2, 5]


def test_an_override_may_be_of_another_kind_than_its_plan() -> None:
    limiter = Limiter(
        plans=[
            Plan("exports", Concurrency(5), overrides={"trial": "3/day"}),
            Plan("api", "99/day", overrides={"slow": Concurrency(1)}),
            DAILY,
        ]
    )
    names = ["exports", "api", "daily", "5/second"]
    assert limiter.concurrency_limits("trial", names) == []
    assert limiter.concurrency_limits("slow", names) == ["exports", "api"]
    assert limiter.holds_places
    limiter.replace_plans([DAILY])
    assert not limiter.holds_places
