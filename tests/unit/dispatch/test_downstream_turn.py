"""An execution's call of its task's downstream: entered, made and over exactly once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from paceline import Downstream, NotFound, Plan, Tasks, current_task
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.downstream_turn import DownstreamTurn, turn_of
from paceline.dispatch.model import Postponed
from paceline.dispatch.start_limits import StartLimits
from paceline.errors import InvalidInput, RateLimitExceeded
from paceline.testing import eventually


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


class LatePermit:
    """A permit that is too old, where there is no other one."""

    def __init__(self) -> None:
        self.is_given_back = False

    async def confirm(self) -> None:
        await asyncio.Event().wait()

    def left(self) -> None: ...

    def release(self) -> None: ...

    def give_back(self) -> None:
        self.is_given_back = True


async def test_a_call_that_is_too_late_and_finds_no_other_permit_goes_back(shop: Downstream) -> None:
    turn = DownstreamTurn(shop, longest_confirm=0.01)
    await turn.enter()
    assert turn._call is not None
    turn._call.taken.permit = late = LatePermit()
    with pytest.raises(Postponed, match="too late"):
        await turn.around(body)
    assert late.is_given_back
    assert (shop.running, await calls(shop)) == (0, 0)


async def test_a_turn_that_comes_at_once_starts_no_task(shop: Downstream) -> None:
    async with shop.call():
        pass  # its connections are open, and its calls are reported
    turn, before = DownstreamTurn(shop), asyncio.all_tasks()
    made: list[Any] = []
    loop = asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(make)
    await turn.enter()
    loop.set_task_factory(None)
    assert (made, asyncio.all_tasks() - before) == ([], set())
    await turn.leave()


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
    assert turn_of(alone.function, alone.definition.config) is None


async def several(*downstreams: Downstream) -> Sequence[Downstream]:
    return downstreams


async def test_what_limits_the_start_is_over_when_the_body_ends_however_it_ends() -> None:
    starts = Downstream("task:MAIL", rate="1000/second", counted="departure", burst=1000, call_timeout=1)
    turn = DownstreamTurn(None, partial(several, starts))

    async def fails() -> None:
        assert starts.running == 1
        raise ValueError("no")

    await turn.enter()
    with pytest.raises(ValueError, match="no"):
        await turn.around(fails)
    await starts._observations.flush()
    assert (await starts.state()).totals[:4] == (1, 0, 0, 0), "an error of the task tells nothing of its limit"
    await starts.close()


async def test_a_call_in_hand_does_not_age_while_another_is_waited_for(shop: Downstream) -> None:
    """The one that takes longest is waited for with nothing in hand."""
    slow = Downstream("slow", rate="1/second", call_timeout=1)
    async with slow:
        await slow.pause()
        turn = DownstreamTurn(shop, partial(several, slow), moment=0.05)
        entering = asyncio.create_task(turn.enter())
        await eventually(lambda: slow.waiting == 1)
        assert shop.running == 0
        for _ in range(3):
            other = DownstreamTurn(slow, partial(several, shop), moment=0.05)
            waiting = asyncio.create_task(other.enter())
            await eventually(lambda: slow.waiting == 2 and not shop.running)
            waiting.cancel()
            await asyncio.wait({waiting})
        await slow.resume()
        await entering
        assert (slow.running, shop.running) == (1, 1)
        assert await turn.around(body) == "done"
        assert (slow.running, shop.running) == (0, 0)


@pytest.mark.parametrize("rate", ["100/second", None])
async def test_a_raised_or_removed_rate_holds_for_who_waits(rate: str | None) -> None:
    config = DispatchConfig(item_type="MAIL", rate="1/day")

    async def settings(_: str) -> DispatchConfig:
        return config

    limits = StartLimits("memory://")

    def turn() -> DownstreamTurn:
        made = turn_of(None, DispatchConfig(item_type="MAIL", rate="1/day"), limits, settings)
        assert made is not None
        return made

    first = turn()
    await first.enter()
    await first.around(body)
    waiting = [asyncio.create_task(turn().enter()) for _ in range(3)]
    (starts,) = await limits.of(config)
    await eventually(lambda: starts.waiting == 3)
    config = config.changed({"rate": rate})
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    await limits.close()


async def test_a_plan_that_goes_while_an_execution_waits_is_missed() -> None:
    plans = {"bank": Plan("bank", "1/day")}

    async def read() -> Mapping[str, Plan]:
        return plans

    limits, config = StartLimits("memory://", read), DispatchConfig(item_type="PAY", admission_plan="bank")
    first, second = turn_of(None, config, limits), turn_of(None, config, limits)
    assert first is not None
    assert second is not None
    await first.enter()
    waiting = asyncio.create_task(second.enter())
    (starts,) = await limits.of(config)
    await eventually(lambda: starts.waiting == 1)
    plans = {}
    with pytest.raises(NotFound, match="no admission plan named 'bank'"):
        await waiting
    await first.leave()
    await limits.close()
