"""FastAPI: applications mounted in a limited one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.exception_handlers import http_exception_handler

from paceline import AsyncLimiter, Plan, TokenBucket
from paceline.integrations.fastapi import everyone, header, install, limited, rate_limit
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock
from tests.integration.asgi_calls import connect, statuses, talk_to

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


def limited_app() -> FastAPI:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limited("gold", key=header("X-API-Key")))])
    async def endpoint() -> str:
        return "hello"

    return app


async def test_a_mounted_app_answers_denials_as_its_parent_does(app: FastAPI) -> None:
    app.mount("/child", limited_app())

    @app.get("/own", dependencies=[Depends(limited("gold", key=header("X-API-Key")))])
    async def own() -> str:
        return "hello"

    async with talk_to(app) as client:
        assert await statuses(client, 2, "/child/", headers=KEY) == [200, 200]
        for headers, status in ((KEY, 429), ({}, 400)):
            expected, denied = await client.get("/own", headers=headers), await client.get("/child/", headers=headers)
            assert expected.status_code == denied.status_code == status
            assert denied.headers["Content-Type"] == "application/problem+json"
            assert denied.headers == expected.headers
            assert denied.json() == expected.json()


async def test_a_handler_of_the_apps_own_gets_the_reason_and_the_fields(app: FastAPI) -> None:
    child = limited_app()
    child.add_exception_handler(429, http_exception_handler)  # type: ignore[arg-type]  # it takes HTTPException
    app.mount("/child", child)
    async with talk_to(app) as client:
        assert await statuses(client, 2, "/child/", headers=KEY) == [200, 200]
        denied = await client.get("/child/", headers=KEY)
    assert denied.status_code == 429
    assert denied.json() == {"detail": "no room under plan 'gold'; retry after 2 s"}
    assert denied.headers["Content-Type"] == "application/json"
    assert denied.headers["Retry-After"] == "2"
    assert denied.headers.get_list("RateLimit") == ['"gold";r=0;t=2']


async def test_a_denied_websocket_of_a_mounted_app_is_closed(app: FastAPI) -> None:
    child = FastAPI()
    app.mount("/child", child)

    @child.websocket("/depending")
    async def depending(socket: WebSocket, _: Annotated[None, Depends(limited("gold", key=everyone("ws")))]) -> None:
        await socket.close()

    @child.websocket("/decorated")
    @rate_limit("gold", key=everyone("ws"))
    async def decorated(socket: WebSocket) -> None:
        await socket.close()

    for path in ("/child/depending", "/child/decorated"):
        await connect(app, path)
    closed = {"type": "websocket.close", "code": 1013, "reason": "rate limit exceeded"}
    for path in ("/child/depending", "/child/decorated"):
        assert await connect(app, path) == [closed]
