"""Redis is stopped, killed, paused and started again with its data, in the middle of load on the gateway."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from paceline.testing import RedisServer
from tests.integration.notification_gateway import Gateway, gateways, new_user

LIMIT = 40
USERS = 6
CALLERS = 8


async def load(served: list[Gateway], users: list[int], stop: asyncio.Event, answers: Counter[tuple[int, int]]) -> None:
    """Sends for every user through every gateway until it is stopped; every answer is counted."""

    async def caller(number: int) -> None:
        turn = number
        while not stop.is_set():
            user = users[turn % len(users)]
            answer = await served[turn % len(served)].send(user)
            answers[user, answer.status_code] += 1
            turn += 1

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))


async def some_more(answers: Counter[tuple[int, int]], count: int) -> None:
    """Returns after so many further answers."""
    target = answers.total() + count
    async with asyncio.timeout(60):
        while answers.total() < target:  # noqa: ASYNC110 - the load itself is what is waited for
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("processes", [1, 3])
async def test_a_restarted_redis_gives_nobody_a_second_quota(
    processes: int, postgres_url: str, own_redis: RedisServer
) -> None:
    async with gateways(processes, database_url=postgres_url, redis_url=own_redis.url) as served:
        users = [new_user() for _ in range(USERS)]
        for user in users:
            assert (await served[0].configure(user, LIMIT, 60)).status_code == 200
        stop = asyncio.Event()
        answers: Counter[tuple[int, int]] = Counter()
        loading = asyncio.create_task(load(served, users, stop, answers))
        await some_more(answers, 40)
        await asyncio.to_thread(own_redis.stop)
        await some_more(answers, 60)
        await asyncio.to_thread(own_redis.start)
        await some_more(answers, 40)
        await asyncio.to_thread(own_redis.kill)
        await some_more(answers, 40)
        await asyncio.to_thread(own_redis.start)
        await some_more(answers, 200)
        stop.set()
        await loading
        assert {status for _, status in answers} <= {200, 429}
        for user in users:
            assert answers[user, 200] <= LIMIT
            assert answers[user, 200] >= LIMIT // 2
        for user in users:
            await served[0].row(user)
            assert (await served[0].send(user)).status_code == 429


async def test_a_paused_redis_costs_timeouts_not_answers(postgres_url: str, own_redis: RedisServer) -> None:
    sms = {"redis_timeout_seconds": 0.2}
    async with gateways(1, database_url=postgres_url, redis_url=own_redis.url, sms=sms) as (served,):
        user = new_user()
        await served.configure(user, 10, 60)
        assert [(await served.send(user)).status_code for _ in range(3)] == [200] * 3
        own_redis.pause()
        try:
            statuses = [(await served.send(user)).status_code for _ in range(9)]
        finally:
            own_redis.resume()
        # A call that timed out may have counted; no user gets more because of it.
        assert Counter(statuses) in ({200: 7, 429: 2}, {200: 6, 429: 3})
        assert (await served.send(user)).status_code == 429
