"""An execution's call of its task's downstream: entered, made and over exactly once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paceline import Downstream, Tasks, current_task
from paceline.dispatch import downstream_turn
from paceline.dispatch.downstream_turn import DownstreamTurn, turn_of
from paceline.dispatch.model import Postponed
from paceline.errors import InvalidInput, RateLimitExceeded


@pytest.fixture
async def shop() -> AsyncIterator[Downstream]:
    async with Downstream("shop", rate="1000/second", limits={"rows": "10/minute"}, call_timeout=1) as shop:
        yield shop


async def body() -> str:
    return "done"


async def calls(shop: Downstream) -> int:
    """How many calls have left, of those that have ended."""
    await shop._observations.flush()
    return (await shop.state()).totals.calls


async def test_a_body_is_one_call(shop: Downstream) -> None:
    turn = DownstreamTurn(shop)
    await turn.enter()
    assert await turn.around(body) == "done"
    await turn.leave()
    assert (shop.running, await calls(shop)) == (0, 1)


async def test_a_call_whose_body_was_never_reached_is_given_back(shop: Downstream) -> None:
    turn = DownstreamTurn(shop)
    for _ in range(20):  # twice as often as there are rows
        await turn.enter()
    await turn.leave()
    assert (shop.running, await calls(shop)) == (0, 0)


async def test_a_body_does_not_run_before_its_turn(shop: Downstream) -> None:
    with pytest.raises(RuntimeError, match="not been entered"):
        await DownstreamTurn(shop).around(body)


async def test_the_body_says_what_its_call_cost(shop: Downstream) -> None:
    turn = DownstreamTurn(shop)

    async def costly() -> None:
        turn.settle(rows=10)

    await turn.enter()
    await turn.around(costly)
    with pytest.raises(RateLimitExceeded):
        await shop.call(timeout=0.01).enter()
    with pytest.raises(InvalidInput, match="no limit 'cells'"):
        turn.settle(cells=1)


async def test_a_refused_call_costs_nothing(shop: Downstream) -> None:
    for _ in range(20):
        turn = DownstreamTurn(shop)
        await turn.enter()

        async def refused(turn: DownstreamTurn = turn) -> None:
            turn.refused()

        await turn.around(refused)
    assert await calls(shop) == 20


@pytest.mark.parametrize("has_answer", [False, True])
async def test_an_error_leaves_the_outcome_unknown_unless_there_was_an_answer(
    shop: Downstream, has_answer: bool
) -> None:
    turn = DownstreamTurn(shop)

    async def fails() -> None:
        if has_answer:
            await asyncio.to_thread(turn.answered)
            await asyncio.sleep(0)
        raise ValueError("not what we asked for")

    await turn.enter()
    with pytest.raises(ValueError, match="not what"):
        await turn.around(fails)
    await shop._observations.flush()
    assert (await shop.state()).totals.unknown == (not has_answer)


async def test_a_call_that_is_too_late_and_finds_no_other_permit_goes_back(
    shop: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream_turn, "LONGEST_CONFIRM", 0.01)
    turn = DownstreamTurn(shop)
    await turn.enter()

    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(turn._call, "confirm", never)
    with pytest.raises(Postponed, match="too late"):
        await turn.around(body)
    assert (shop.running, await calls(shop)) == (0, 0)


async def test_in_memory_no_task_calls_its_downstream(shop: Downstream) -> None:
    tasks = Tasks("sqlite:///never.db")
    slow = Downstream("slow", rate="1/hour", limits={"rows": "1/hour"})

    @tasks.task(downstream=slow)
    def plain(number: int) -> int:
        current_task().call.settle(rows=number)
        current_task().call.answered()
        return number

    async with tasks.in_memory():
        await plain.enqueue_many([(number,) for number in range(1, 6)])
        await plain.options(key="six").enqueue(6)
        assert (await plain.show("six")).result == 6
    assert (slow.running, await calls(slow)) == (0, 0)


async def test_a_task_without_a_downstream_has_no_call(shop: Downstream) -> None:
    tasks = Tasks("sqlite:///never.db")

    @tasks.task(retries=0)
    async def alone() -> None:
        current_task().call.settle(rows=1)

    async with tasks.in_memory():
        await alone.options(key="one").enqueue()
        assert "ALONE has no downstream" in str((await alone.show("one")).item.last_error)
    assert turn_of(alone.function) is None
