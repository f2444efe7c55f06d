"""FastAPI: the decorator and the dependency, on every kind of endpoint, limiter and trouble."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any
from weakref import ref

import httpx2 as httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import StreamingResponse
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan, SlidingWindow, TokenBucket
from paceline.errors import ConfigurationError, InvalidInput
from paceline.integrations.fastapi import (
    client_address,
    composite,
    everyone,
    header,
    install,
    limited,
    path,
    principal,
    rate_limit,
)
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock
from tests.integration.asgi_calls import connect, statuses, talk_to

PLANS = [
    Plan("gold", TokenBucket(capacity=2, per_second=0.5)),
    Plan("daily", FixedWindow(limit=3, window="P1D")),
    Plan("wide", SlidingWindow(limit=100, window="PT1M")),
]
KEY = {"X-API-Key": "ada"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2027, 1, 1, tzinfo=UTC))


@pytest.fixture(params=["sync", "async"])
def limiter(request: pytest.FixtureRequest, clock: FakeClock) -> Limiter | AsyncLimiter:
    store = MemoryLimitStore(clock=clock)
    if request.param == "sync":
        return Limiter(store, plans=PLANS)
    return AsyncLimiter(AsyncMemoryLimitStore(store), plans=PLANS)


@pytest.fixture
def app(limiter: Limiter | AsyncLimiter) -> FastAPI:
    app = FastAPI()
    install(app, limiter)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with talk_to(app) as client:
        yield client


def shouting(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Another decorator, made as they should be."""

    @wraps(endpoint)
    async def shouted(*args: Any, **kwargs: Any) -> str:
        return str(await endpoint(*args, **kwargs)).upper()

    return shouted


async def test_a_caller_who_waits_retry_after_is_admitted(
    app: FastAPI, client: httpx.AsyncClient, clock: FakeClock
) -> None:
    @app.get("/")
    @rate_limit("gold", key=header("X-API-Key"))
    async def endpoint() -> str:
        return "hello"

    assert await statuses(client, 2, headers=KEY) == [200, 200]
    denied = await client.get("/", headers=KEY)
    assert denied.status_code == 429
    assert denied.headers["Retry-After"] == "2"
    assert denied.headers["RateLimit-Policy"] == '"gold";q=2;w=4'
    assert denied.headers["RateLimit"] == '"gold";r=0;t=2'
    clock.advance(float(denied.headers["Retry-After"]))
    admitted = await client.get("/", headers=KEY)
    assert admitted.status_code == 200
    assert admitted.headers.get_list("RateLimit") == ['"gold";r=0;t=2']
    assert "Retry-After" not in admitted.headers


def find_user(token: str = "none") -> str:
    return f"user of {token}"


async def test_endpoints_keep_their_parameters(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/async/{item}")
    @rate_limit("wide", key=header("X-API-Key"))
    async def asynchronous(
        item: int, request: Request, user: Annotated[str, Depends(find_user)], q: str = "-"
    ) -> list[str]:
        return [str(item), user, q, request.url.path]

    @app.get("/sync/{item}")
    @rate_limit("wide", key=header("X-API-Key"))
    def synchronous(item: int, q: str = "-") -> list[str]:
        return [str(item), q, threading.current_thread().name]

    answer = await client.get("/async/7?q=a&token=t", headers=KEY)
    assert answer.json() == ["7", "user of t", "a", "/async/7"]
    item, q, thread = (await client.get("/sync/8?q=b", headers=KEY)).json()
    assert (item, q) == ("8", "b")
    assert thread != threading.main_thread().name
    assert (await client.get("/async/x", headers=KEY)).status_code == 422
    parameters = app.openapi()["paths"]["/async/{item}"]["get"]["parameters"]
    assert [parameter["name"] for parameter in parameters] == ["item", "q", "token"]


async def test_stacked_decorators_are_one_atomic_chain(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/")
    @rate_limit("daily", key=header("X-API-Key"))
    @rate_limit("gold", key=client_address())
    async def endpoint() -> str:
        return "hello"

    assert await statuses(client, 5, headers=KEY) == [200, 200, 429, 429, 429]
    fields = (await client.get("/", headers=KEY)).headers
    assert fields["RateLimit-Policy"] == '"daily";q=3;w=86400, "gold";q=2;w=4'
    assert fields["RateLimit"] == '"daily";r=1;t=86400, "gold";r=0;t=2'


async def test_a_list_of_plans_is_one_atomic_chain(app: FastAPI, client: httpx.AsyncClient, clock: FakeClock) -> None:
    @app.get("/")
    @rate_limit(["gold", "daily"], key=header("X-API-Key"))
    async def endpoint() -> str:
        return "hello"

    assert await statuses(client, 4, headers=KEY) == [200, 200, 429, 429]
    clock.advance(4)
    assert await statuses(client, 2, headers=KEY) == [200, 429]
    assert (await client.get("/", headers=KEY)).json()["violated-policies"] == ["daily"]


async def test_a_plan_held_twice_on_one_key_is_charged_once(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/")
    @rate_limit("daily", key=header("X-API-Key"), cost=2)
    @rate_limit("daily", key=header("X-API-Key"))
    async def endpoint() -> str:
        return "hello"

    assert (await client.get("/", headers=KEY)).headers["RateLimit"] == '"daily";r=1;t=86400'


async def test_costs_may_depend_on_the_request(app: FastAPI, client: httpx.AsyncClient) -> None:
    def units(request: Request) -> int:
        requested = int(request.query_params["n"])
        if not 1 <= requested <= 3:
            raise InvalidInput("n", "write a number from 1 to 3")
        return requested

    @app.get("/")
    @rate_limit("daily", key=header("X-API-Key"), cost=units)
    async def endpoint() -> str:
        return "hello"

    assert (await client.get("/?n=2", headers=KEY)).headers["RateLimit"] == '"daily";r=1;t=86400'
    assert (await client.get("/?n=2", headers=KEY)).status_code == 429
    assert (await client.get("/?n=1", headers=KEY)).status_code == 200
    for impossible in (4, 0, -1):
        refused = await client.get(f"/?n={impossible}", headers={"X-API-Key": "other"})
        assert refused.status_code == 400
        assert refused.json()["field"] == "n"
    assert (await client.get("/?n=3", headers={"X-API-Key": "other"})).status_code == 200


async def test_the_dependency_limits_a_router_and_generators(app: FastAPI, client: httpx.AsyncClient) -> None:
    router = APIRouter(prefix="/r", dependencies=[Depends(limited("gold", key=header("X-API-Key")))])

    @router.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(["a", "b"]))

    @router.get("/plain")
    def plain() -> str:
        return "hello"

    app.include_router(router)
    answer = await client.get("/r/stream", headers=KEY)
    assert answer.text == "ab"
    assert answer.headers["RateLimit"] == '"gold";r=1;t=2'
    assert await statuses(client, 2, "/r/plain", headers=KEY) == [200, 429]
    denied = await client.get("/r/plain", headers=KEY)
    assert denied.headers["Content-Type"] == "application/problem+json"
    assert denied.headers["Retry-After"] == "2"
    assert denied.headers.get_list("RateLimit") == ['"gold";r=0;t=2']
    assert (await client.get("/r/plain")).status_code == 400


async def test_a_dependency_and_a_decorator_both_tell(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/", dependencies=[Depends(limited("wide", key=everyone("all")))])
    @rate_limit("gold", key=header("X-API-Key"))
    async def endpoint() -> str:
        return "hello"

    fields = (await client.get("/", headers=KEY)).headers
    assert fields.get_list("RateLimit") == ['"wide";r=99;t=120, "gold";r=1;t=2']


def test_a_generator_endpoint_is_refused_when_it_is_decorated() -> None:
    def lines() -> Iterator[str]:
        yield "a"

    with pytest.raises(ConfigurationError, match="limited"):
        rate_limit("gold", key=path())(lines)


async def test_without_install_the_mistake_is_named() -> None:
    app = FastAPI()

    @app.get("/")
    @rate_limit("gold", key=path())
    async def endpoint() -> str:
        return "hello"

    async with talk_to(app) as client:
        with pytest.raises(ConfigurationError, match="install"):
            await client.get("/")


async def test_the_connection_is_handed_over_unseen(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/plain/{name}")
    @shouting
    @rate_limit("wide", key=path())
    async def plain(name: str) -> str:
        return name

    @app.get("/own")
    @rate_limit("wide", key=lambda request: request.url.path)
    async def own(request: Annotated[Request, "theirs"], connection: HTTPConnection) -> list[str]:
        return [type(request).__name__, connection.url.path]

    assert (await client.get("/plain/ada")).json() == "ADA"
    assert (await client.get("/own")).json() == ["Request", "/own"]
    shown = app.openapi()["paths"]
    assert [parameter["name"] for parameter in shown["/plain/{name}"]["get"]["parameters"]] == ["name"]
    assert "parameters" not in shown["/own"]["get"]


async def test_a_decorator_that_keeps_the_connection_to_itself_is_named(
    app: FastAPI, client: httpx.AsyncClient
) -> None:
    @rate_limit("wide", key=path())
    async def inner(name: str) -> str:
        return name

    @app.get("/{name}")
    async def outer(name: str) -> str:
        return str(await inner(name))

    with pytest.raises(ConfigurationError, match="keyword arguments"):
        await client.get("/ada")


async def test_a_decorator_may_come_between_two_limits(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/")
    @rate_limit("daily", key=path())
    @shouting
    @rate_limit("wide", key=path())
    async def endpoint() -> str:
        return "hello"

    answer = await client.get("/")
    assert answer.json() == "HELLO"
    assert answer.headers.get_list("RateLimit") == ['"daily";r=2;t=86400, "wide";r=99;t=120']
    assert await statuses(client, 3) == [200, 200, 429]


async def test_nothing_of_a_request_is_left_to_the_garbage_collector(app: FastAPI) -> None:
    class Scope(dict[str, Any]):
        """One that can be watched."""

    @app.get("/")
    @rate_limit("wide", key=client_address())
    async def endpoint() -> str:
        return "hello"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            fields.append(message["headers"][-1])

    fields: list[tuple[bytes, bytes]] = []
    gc.disable()
    try:
        for _ in range(2):
            scope = Scope(type="http", method="GET", path="/", query_string=b"", headers=[], client=("192.0.2.1", 4711))
            watched = ref(scope)
            await app(scope, receive, send)
            del scope
            assert watched() is None
    finally:
        gc.enable()
    assert fields == [(b"ratelimit", b'"wide";r=99;t=120'), (b"ratelimit", b'"wide";r=98;t=120')]


def test_install_wants_a_limiter() -> None:
    with pytest.raises(ConfigurationError, match="limiter"):
        install(FastAPI(), "redis://localhost")  # type: ignore[arg-type]


def test_a_second_install_is_refused(app: FastAPI, limiter: Limiter | AsyncLimiter) -> None:
    with pytest.raises(ConfigurationError, match="install was called before"):
        install(app, limiter)


async def test_a_dependency_may_find_the_principal(app: FastAPI, client: httpx.AsyncClient) -> None:
    async def authenticate(request: Request, user: str = "") -> None:
        request.state.principal = user or None

    @app.get("/", dependencies=[Depends(authenticate)])
    @rate_limit("gold", key=principal())
    async def endpoint() -> str:
        return "hello"

    assert await statuses(client, 3, "/?user=ada") == [200, 200, 429]
    assert await statuses(client, 1, "/?user=bob") == [200]
    assert await statuses(client, 1) == [400]


async def test_starlettes_authentication_finds_the_principal(limiter: Limiter | AsyncLimiter) -> None:
    class Backend(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
            name = conn.headers.get("X-User")
            return (AuthCredentials(), SimpleUser(name)) if name else None

    app = FastAPI()
    install(app, limiter)
    app.add_middleware(AuthenticationMiddleware, backend=Backend())

    @app.get("/")
    @rate_limit("gold", key=composite(principal(), path()))
    async def endpoint() -> str:
        return "hello"

    async with talk_to(app) as client:
        assert await statuses(client, 3, headers={"X-User": "ada"}) == [200, 200, 429]
        assert await statuses(client, 1, headers={"X-User": "bob"}) == [200]
        assert await statuses(client, 1) == [400]


async def test_install_may_say_who_the_principal_is(limiter: Limiter | AsyncLimiter) -> None:
    async def whoever(request: Request) -> str | None:
        return request.query_params.get("as")

    app = FastAPI()
    install(app, limiter, principal=whoever, partition_keys=True)

    @app.get("/")
    @rate_limit("gold", key=principal())
    async def endpoint() -> str:
        return "hello"

    async with talk_to(app) as client:
        fields = (await client.get("/?as=ada")).headers
        assert fields["RateLimit"] == '"gold";r=1;t=2;pk=:/e5DDUC9V97qwYbN:'
        assert (await client.get("/")).status_code == 400


async def test_skipped_requests_are_free(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/")
    @rate_limit("gold", key=header("X-API-Key", skip=True))
    async def endpoint() -> str:
        return "hello"

    assert await statuses(client, 5) == [200] * 5
    assert "RateLimit" not in (await client.get("/")).headers
    assert await statuses(client, 3, headers=KEY) == [200, 200, 429]


async def test_other_middleware_does_not_come_between(app: FastAPI, client: httpx.AsyncClient) -> None:
    async def dispatch(request: Request, call_next: Callable[[Request], Any]) -> Any:
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.user_middleware.reverse()  # now inside of ours: the endpoint runs in another task than our middleware

    @app.get("/")
    @rate_limit("gold", key=header("X-API-Key"))
    async def endpoint() -> str:
        return "hello"

    assert (await client.get("/", headers=KEY)).headers["RateLimit"] == '"gold";r=1;t=2'
    assert await statuses(client, 2, headers=KEY) == [200, 429]


async def test_an_endpoint_that_fails_has_been_charged(app: FastAPI) -> None:
    @app.get("/")
    @rate_limit("gold", key=header("X-API-Key"))
    async def endpoint(status: int = 500) -> str:
        raise HTTPException(status) if status < 500 else RuntimeError("boom")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/?status=404", headers=KEY)
        assert response.headers["RateLimit"] == '"gold";r=1;t=2'
        failed = await client.get("/", headers=KEY)
        assert failed.status_code == 500
        assert "RateLimit" not in failed.headers  # Starlette answers outside of all middleware, as the docs say
        assert await statuses(client, 1, headers=KEY) == [429]


async def test_a_denial_raised_by_the_application_is_answered(app: FastAPI, client: httpx.AsyncClient) -> None:
    own = Limiter(plans=[Plan("own", FixedWindow(limit=1, window="PT1H"))])

    @app.get("/")
    async def endpoint() -> str:
        own.check("k", ["own"])
        return "hello"

    assert (await client.get("/")).status_code == 200
    denied = await client.get("/")
    assert denied.status_code == 429
    assert int(denied.headers["Retry-After"]) <= 3600
    assert denied.json()["violated-policies"] == ["own"]


async def test_a_websocket_counts_when_it_connects(app: FastAPI) -> None:
    @app.websocket("/ws")
    async def talk(socket: WebSocket, _: Annotated[None, Depends(limited("gold", key=everyone("all")))]) -> None:
        await socket.accept()
        await socket.close()

    for _ in range(2):
        accepted, *_rest = await connect(app, "/ws")
        assert accepted["type"] == "websocket.accept"
        assert b"ratelimit" in dict(accepted["headers"])
    assert await connect(app, "/ws") == [{"type": "websocket.close", "code": 1013, "reason": "rate limit exceeded"}]
    start, _body = await connect(app, "/ws", extensions={"websocket.http.response": {}})
    assert start["status"] == 429
    assert (b"retry-after", b"2") in start["headers"]


async def test_a_denied_websocket_endpoint_is_closed(app: FastAPI) -> None:
    @app.websocket("/ws")
    @rate_limit("gold", key=everyone("ws"))
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    for _ in range(2):
        assert [message["type"] for message in await connect(app, "/ws")] == ["websocket.accept", "websocket.close"]
    assert [message["type"] for message in await connect(app, "/ws")] == ["websocket.close"]


async def test_a_decorator_takes_a_rate(limiter: Limiter | AsyncLimiter) -> None:
    app = FastAPI()

    @app.get("/one")
    @rate_limit("1/minute", key=everyone("all"))
    async def one() -> str:
        return "one"

    @app.get("/several")
    @rate_limit("1/minute;5/day", key=everyone("all"))
    async def several() -> str:
        return "several"

    install(app, limiter)
    async with talk_to(app) as client:
        answers = [await client.get("/one") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 429, 429]
        assert answers[0].headers["RateLimit-Policy"] == '"1/minute";q=1;w=60'
        answers = [await client.get("/several") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[0].headers["RateLimit"] == '"1/minute;5/day;PT1M";r=0;t=60, "1/minute;5/day;P1D";r=4;t=86400'
        assert answers[1].json()["violated-policies"] == ["1/minute;5/day;PT1M"]
