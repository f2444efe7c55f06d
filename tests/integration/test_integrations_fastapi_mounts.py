"""FastAPI: applications mounted in a limited one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi import Depends, FastAPI

from headgate import AsyncLimiter, Plan, TokenBucket
from headgate.adapters.memory.limits import AsyncMemoryLimitStore, MemoryLimitStore
from headgate.integrations.fastapi import header, install, limited, rate_limit
from headgate.testing import FakeClock
from tests.integration.asgi_calls import statuses, talk_to

KEY = {"X-API-Key": "ada"}


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    store = AsyncMemoryLimitStore(MemoryLimitStore(clock=FakeClock(datetime(2027, 1, 1, tzinfo=UTC))))
    install(app, AsyncLimiter(store, plans=[Plan("gold", TokenBucket(capacity=2, per_second=0.5))]))
    return app


async def test_a_mounted_app_is_limited_by_its_parents_limiter(app: FastAPI) -> None:
    child = FastAPI()

    @child.get("/decorated")
    @rate_limit("gold", key=header("X-API-Key"))
    async def decorated() -> str:
        return "hello"

    @child.get("/depending", dependencies=[Depends(limited("gold", key=header("X-API-Key")))])
    async def depending() -> str:
        return "hello"

    app.mount("/child", child)
    async with talk_to(app) as client:
        assert await statuses(client, 3, "/child/decorated", headers=KEY) == [200, 200, 429]
        denied = await client.get("/child/depending", headers=KEY)
        assert denied.status_code == 429
        assert denied.headers["Retry-After"] == "2"
