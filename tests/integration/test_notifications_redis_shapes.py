"""The Redis path on a Cluster, and over a Sentinel failover."""

from __future__ import annotations

import asyncio
from collections import Counter

from paceline.testing import RedisSentinel, eventually
from paceline.testing.servers.redis_cluster import RedisClusterAddress
from tests.integration.notification_gateway import gateway, new_user


async def test_users_spread_over_a_cluster_are_limited(postgres_url: str, redis_cluster: RedisClusterAddress) -> None:
    async with gateway(database_url=postgres_url, redis_url=redis_cluster.url) as served:
        users = [new_user() for _ in range(12)]
        for user in users:
            await served.configure(user, 3, 10)
        for user in users:
            answers = await asyncio.gather(*(served.send(user, key=f"k{n % 4}") for n in range(8)))
            assert Counter(answer.status_code for answer in answers) == {200: 6, 429: 2}
            assert (await served.row(user)).current_count == 3
            await served.configure(user, 1, 10)
            assert [(await served.send(user)).status_code for _ in range(2)] == [200, 429]


async def test_a_failover_gives_nobody_a_second_quota(postgres_url: str, redis_sentinel: RedisSentinel) -> None:
    async with gateway(database_url=postgres_url, redis_url=redis_sentinel.url) as served:
        user = new_user()
        await served.configure(user, 10, 10)
        statuses = Counter([(await served.send(user)).status_code for _ in range(4)])
        await asyncio.to_thread(redis_sentinel.fail_over)

        async def used_up() -> bool:
            answer = await served.send(user)
            statuses[answer.status_code] += 1
            return answer.status_code == 429

        await eventually(used_up)
        for _ in range(10):
            statuses[(await served.send(user)).status_code] += 1
        assert set(statuses) == {200, 429}
        assert 8 <= statuses[200] <= 10
