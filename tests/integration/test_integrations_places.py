"""Places of concurrency limits: renewed for as long as a request, a connection or a function runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse

from paceline import AsyncLimiter, Concurrency, FixedWindow, Limiter, Plan, RateLimitExceeded
from paceline.integrations.asgi import PathRule, RateLimitMiddleware
from paceline.integrations.fastapi import everyone, install, rate_limit
from paceline.integrations.functions import rate_limit as limit_function
from paceline.testing import FakeClock
from tests.unit.limits.test_handles_places import Manual

PLANS = [
    Plan("exports", Concurrency(2, expires="PT30S")),
    Plan("long", Concurrency(2, expires="PT1H")),
    Plan("daily", FixedWindow(limit=3, window="P1D")),
    Plan("one of a kind", "99/day", overrides={"slow": Concurrency(1, expires="PT1H")}),
]
KEY = everyone("all")


class World:
    """A limiter whose clock and renewals the test drives."""

    def __init__(self, kind: Any) -> None:
        self.clock = FakeClock(datetime(2027, 1, 1, tzinfo=UTC))
        self.limiter: Any = kind(plans=PLANS, clock=self.clock)
        self.renewals = self.limiter._renewals = Manual()

    async def pass_time(self, seconds: int) -> None:
        """Time, with a renewal every ten seconds."""
        for _ in range(seconds // 10):
            self.clock.advance(10)
            await self.renewals.run()

    async def remaining(self, plan: str) -> int:
        decision = self.limiter.peek("all", plan)
        return int((await decision if asyncio.iscoroutine(decision) else decision).remaining)


@pytest.fixture(params=[Limiter, AsyncLimiter])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def decorated(world: World, plan: str, work: Callable[[], Awaitable[None]]) -> Any:
    app = FastAPI()
    install(app, world.limiter)

    @app.get("/work")
    @rate_limit(plan, key=KEY)
    async def get() -> str:
        await work()
        return "done"

    @app.get("/stream")
    @rate_limit(plan, key=KEY)
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "one"
            await work()
            yield "two"

        return StreamingResponse(parts())

    @app.websocket("/socket")
    @rate_limit(plan, key=KEY)
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await work()

    return app


def by_rule(world: World, plan: str, work: Callable[[], Awaitable[None]]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            await work()
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await work()
        await send({"type": "http.response.body", "body": b"two"})

    return RateLimitMiddleware(app, world.limiter, [PathRule("*", plan, key=KEY)])


async def run(app: Any, path: str) -> str:
    """Sends a request, or connects a WebSocket; returns the type of the first message."""
    sent: list[str] = []
    received = iter([{"type": "websocket.connect"} if path == "/socket" else {"type": "http.request", "body": b""}])

    async def receive() -> dict[str, Any]:
        message = next(received, None)
        if message is None:
            await asyncio.Event().wait()  # the client stays connected
        return message or {}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    kind = "websocket" if path == "/socket" else "http"
    scope: dict[str, Any] = {
        "type": kind,
        "method": "GET",
        "path": path,
        "headers": [],
        "query_string": b"",
        "client": None,
    }
    await app(scope, receive, send)
    return sent[0]


@pytest.mark.parametrize("making", [decorated, by_rule])
@pytest.mark.parametrize("path", ["/work", "/stream", "/socket"])
async def test_a_place_is_renewed_while_a_request_runs(world: World, making: Any, path: str) -> None:
    left: list[int] = []

    async def work() -> None:
        await world.pass_time(300)
        left.append(await world.remaining("exports"))

    app = making(world, "exports", work)
    expected = "websocket.accept" if path == "/socket" else "http.response.start"
    assert [await run(app, path) for _ in range(3)] == [expected] * 3
    assert left == [1, 1, 1]
    assert await world.remaining("exports") == 2
    assert not world.renewals.renew


@pytest.mark.parametrize("making", [decorated, by_rule])
@pytest.mark.parametrize("path", ["/work", "/stream", "/socket"])
async def test_a_long_request_gives_its_place_back(world: World, making: Any, path: str) -> None:
    async def work() -> None:
        world.clock.advance(11 * 60)

    app = making(world, "long", work)
    for _ in range(3):
        await run(app, path)
        assert await world.remaining("long") == 2


async def test_a_place_is_renewed_while_a_function_runs() -> None:
    world = World(Limiter)
    left: list[int] = []

    @limit_function(world.limiter, ["exports", "daily"], key="all")
    def work(fails: bool) -> None:
        world.clock.advance(20)
        for renew in world.renewals.renew:
            renew()
        world.clock.advance(20)
        left.append(world.limiter.peek("all", "exports").remaining)
        if fails:
            raise KeyError

    work(False)
    with pytest.raises(KeyError):
        work(True)
    work(False)
    assert left == [1, 1, 1]
    assert await world.remaining("exports") == 2
    with pytest.raises(RateLimitExceeded) as denied:
        work(False)
    assert denied.value.decision.plan == "daily"
    assert await world.remaining("exports") == 2


@pytest.mark.parametrize("wait", [None, 5])
async def test_a_place_is_renewed_while_an_async_function_runs(wait: float | None) -> None:
    world = World(AsyncLimiter)
    left: list[int] = []

    @limit_function(world.limiter, "exports", key="all", wait=wait)
    async def work(fails: bool) -> None:
        await world.pass_time(90)
        left.append(await world.remaining("exports"))
        if fails:
            raise KeyError

    await work(False)
    with pytest.raises(KeyError):
        await work(True)
    await work(False)
    assert left == [1, 1, 1]
    assert await world.remaining("exports") == 2


async def test_the_first_call_of_a_function_gives_its_place_back() -> None:
    class Registry:
        refresh_every = None

        def load(self) -> dict[str, Plan]:
            return {plan.name: plan for plan in PLANS}

    limiter = AsyncLimiter(plans=Registry())

    @limit_function(limiter, "exports", key="all")
    async def work() -> int:
        return (await limiter.peek("all", "exports")).remaining

    assert [await work() for _ in range(3)] == [1, 1, 1]
    assert (await limiter.peek("all", "exports")).remaining == 2


def test_a_function_holds_the_place_of_an_override() -> None:
    limiter = Limiter(plans=PLANS)

    @limit_function(limiter, "one of a kind", key=lambda key: key)
    def work(key: str) -> int:
        return limiter.peek(key, "one of a kind").remaining

    assert [work("slow") for _ in range(3)] == [0, 0, 0]
    assert [work("other") for _ in range(3)] == [98, 97, 96]
