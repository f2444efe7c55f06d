"""Of several downstreams, a call goes to the most preferred one that lets it leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paceline import BreakerPolicy, Downstream, FirstOf
from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.testing import eventually

NEVER = BreakerPolicy(failures=1000)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Downstream, Downstream]]:
    async with Downstream("slow", rate="1/minute") as slow, Downstream("spare", breaker=NEVER) as spare:
        yield slow, spare


async def test_the_first_one_is_preferred_and_the_next_takes_what_it_can_not(
    pair: tuple[Downstream, Downstream],
) -> None:
    slow, spare = pair
    both = FirstOf(slow, spare, patience=0.05)
    went = []
    for _ in range(3):
        async with both.call() as call:
            went.append(call.downstream.name)
    assert went == ["slow", "spare", "spare"]
    assert (slow.running, spare.running, slow.waiting, spare.waiting) == (0, 0, 0, 0)
    assert both.name == "slow, spare"


async def test_what_none_lets_leave_is_refused_and_nothing_is_kept(pair: tuple[Downstream, Downstream]) -> None:
    slow, spare = pair
    await slow.pause()
    await spare.pause()
    both = FirstOf(slow, spare, patience=0.01)
    with pytest.raises(RateLimitExceeded):
        async with both.call(timeout=0.1):
            raise AssertionError
    waiting = asyncio.create_task(both.call(timeout=None).enter())
    await eventually(lambda: spare.waiting == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (slow.running, spare.running, slow.waiting, spare.waiting) == (0, 0, 0, 0)
    await slow.resume()
    async with both.call() as call:
        assert call.downstream is slow, "its permit was not lost"


async def test_an_error_of_the_block_is_of_the_one_that_was_called() -> None:
    policy = BreakerPolicy(failures=1, first_pause=30, longest_pause=30)
    async with Downstream("a", breaker=policy) as a, Downstream("b", breaker=policy) as b:
        both = FirstOf(a, b, patience=0.05)
        with pytest.raises(ConnectionResetError):
            async with both.call():
                raise ConnectionResetError
        assert ((await a.state()).breaker is None, (await b.state()).breaker is None) == (False, True)
        async with both.call() as call:
            assert call.downstream is b


def test_one_alone_is_no_choice() -> None:
    with pytest.raises(ConfigurationError, match="at least two"):
        FirstOf(Downstream("only", rate="1/second"))
