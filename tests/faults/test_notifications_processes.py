"""Several gateway processes, one slot left, two hundred callers: exactly one is served."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline.sql.engine import Database
from paceline.testing import eventually
from tests.effort import is_thorough
from tests.faults.notification_processes import served

PROCESSES = 3
CALLERS = 200
ROUNDS = 3 if is_thorough() else 1


@pytest.mark.parametrize("path", ["sql", "redis"])
async def test_of_two_hundred_callers_one_takes_the_last_slot(
    path: str, request: pytest.FixtureRequest, postgres_url: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    environment = {
        "PACELINE_DATABASE_URL": postgres_url,
        "PACELINE_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "PACELINE_SMS_TOPIC": f"sms-{uuid.uuid4().hex[:12]}",
        "PACELINE_SMS_EVENTS_TOPIC": f"events-{uuid.uuid4().hex[:12]}",
        "PACELINE_SMS_KAFKA_DELIVERY_SECONDS": "20",
    }
    if path == "redis":
        environment["PACELINE_REDIS_URL"] = request.getfixturevalue("redis_url")
    async with (
        served(PROCESSES, tmp_path, **environment) as urls,
        httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=CALLERS)) as client,
    ):

        async def send(user: int, number: int) -> int:
            url = urls[number % PROCESSES]
            answer = await client.post(f"{url}/api/send", json={"userId": user, "message": f"{number}"})
            return answer.status_code

        for user in range(ROUNDS):
            body = {"userId": user, "rateLimit": 5, "timeWindow": 10}
            assert (await client.post(f"{urls[0]}/api/config", json=body)).status_code == 200
            assert [await send(user, number) for number in range(4)] == [200] * 4
            answers = await asyncio.gather(*(send(user, number) for number in range(CALLERS)))
            assert Counter(answers) == {200: 1, 429: CALLERS - 1}
        assert await eventually(lambda: counts_of(postgres_url, [5] * ROUNDS))


async def counts_of(url: str, expected: list[int]) -> bool:
    """Whether the rows match; the Redis path syncs them a moment later."""
    import sqlalchemy as sa

    from paceline_sms.stores.tables import notification_quota as quota

    database = Database(url)
    query = sa.select(quota.c.current_count).order_by(quota.c.user_id)
    try:
        return await database.read(lambda connection: list(connection.execute(query).scalars())) == expected
    finally:
        await database.close()
