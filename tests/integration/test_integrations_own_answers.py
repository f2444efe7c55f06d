"""Handlers of an application's own for denials, honoured by decorators as by dependencies, and what OpenAPI shows."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse
from flask import Blueprint, Flask, current_app
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route
from starlette.websockets import WebSocket

from paceline import AsyncLimiter, Decision, FixedWindow, Limiter, Plan, RateLimitExceeded
from paceline.integrations import flask, starlette
from paceline.integrations.asgi import PathRule, RateLimitMiddleware
from paceline.integrations.fastapi import Limit, everyone, exempt, install, limited, rate_limit, route
from tests.integration.asgi_calls import connect, statuses, talk_to

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H")), Plan("large", FixedWindow(limit=5, window="PT1H"))]
ALL = everyone("all")


def _fastapi(**options: Any) -> FastAPI:
    app = FastAPI()
    install(app, AsyncLimiter(plans=PLANS), **options)

    @app.get("/decorated")
    @rate_limit("small", key=everyone("decorated"))
    async def decorated() -> str:
        return "hello"

    @app.get("/dependent", dependencies=[Depends(limited("small", key=everyone("dependent")))])
    async def dependent() -> str:
        return "hello"

    @app.get("/default")
    async def default() -> str:
        return "hello"

    return app


PATHS = ["/decorated", "/dependent", "/default"]
DEFAULTS = [Limit("small", key=everyone("default"))]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [RateLimitExceeded, 429])
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_handler_of_a_fastapi_application_answers(path: str, kind: Any, is_async: bool) -> None:
    app = _fastapi(defaults=DEFAULTS)

    def sync_handler(request: Request, error: RateLimitExceeded) -> Response:
        return JSONResponse({"plan": error.decision.plan, "at": request.url.path}, 420, {"X-Own": "yes"})

    async def async_handler(request: Request, error: RateLimitExceeded) -> Response:
        return sync_handler(request, error)

    app.exception_handler(kind)(async_handler if is_async else sync_handler)
    async with talk_to(app) as client:
        assert (await client.get(path)).status_code == 200
        denied = await client.get(path)
    assert denied.status_code == 420
    assert denied.json() == {"plan": "small", "at": path}
    assert denied.headers["X-Own"] == "yes"
    assert denied.headers.get_list("Retry-After") == ["3600"]
    assert denied.headers.get_list("RateLimit") == ['"small";r=0;t=3600']


async def test_a_handler_given_before_install_stays() -> None:
    app = Starlette(exception_handlers={RateLimitExceeded: lambda request, error: PlainTextResponse("mine", 420)})

    @starlette.rate_limit("small", key=ALL)
    async def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    app.add_route("/", hello)
    starlette.install(app, AsyncLimiter(plans=PLANS))
    async with talk_to(app) as client:
        assert await statuses(client, 2) == [200, 420]


@pytest.mark.parametrize("path", PATHS)
async def test_a_handler_that_repeats_the_errors_headers_repeats_none(path: str) -> None:
    app = _fastapi(defaults=DEFAULTS)

    @app.exception_handler(429)
    async def handler(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    async with talk_to(app) as client:
        await client.get(path)
        denied = await client.get(path)
    assert denied.headers.get_list("Retry-After") == ["3600"]
    assert denied.headers.get_list("RateLimit-Policy") == ['"small";q=1;w=3600']


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("where", ["limit", "install"])
async def test_on_denied_wins_over_handlers(path: str, where: str) -> None:
    async def sorry(request: Request, decision: Decision) -> Response:
        return JSONResponse({"sorry": request.url.path}, 503)

    own: Any = {"on_denied": sorry}
    app = FastAPI()
    at_limit = own if where == "limit" else {}
    install(app, AsyncLimiter(plans=PLANS), defaults=[Limit("small", key=ALL, **at_limit)], **({} if at_limit else own))
    app.add_exception_handler(429, lambda request, error: PlainTextResponse("handler", 420))
    app.get("/decorated")(rate_limit("small", key=everyone("decorated"), **at_limit)(_hello))
    app.get("/dependent", dependencies=[Depends(limited("small", key=everyone("dependent"), **at_limit))])(_hello)
    app.get("/default")(_hello)
    async with talk_to(app) as client:
        assert (await client.get(path)).status_code == 200
        denied = await client.get(path)
    assert (denied.status_code, denied.json()) == (503, {"sorry": path})
    assert denied.headers["Retry-After"] == "3600"


async def _hello() -> str:
    return "hello"


async def test_a_check_of_the_application_itself_is_answered_alike() -> None:
    limiter = AsyncLimiter(plans=PLANS)
    app = FastAPI()
    install(app, limiter, on_denied=lambda request, decision: {"plan": decision.plan})

    @app.get("/")
    async def hello() -> str:
        await limiter.check("ada", "small")
        return "hello"

    async with talk_to(app) as client:
        assert (await client.get("/")).status_code == 200
        denied = await client.get("/")
    assert (denied.status_code, denied.json()) == (429, {"plan": "small"})
    assert denied.headers["Retry-After"] == "3600"


FIELDS = {"Retry-After": "3600", "RateLimit": '"small";r=0;t=3600', "RateLimit-Policy": '"small";q=1;w=3600'}


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.parametrize("kind", ["none", "on_denied", 429, RateLimitExceeded])
async def test_a_denied_check_is_answered_as_a_limits_denial_is(kind: Any, mounted: bool) -> None:
    limiter, own = AsyncLimiter(plans=PLANS), (kind in (429, RateLimitExceeded))
    app, child = FastAPI(), FastAPI()
    inner = child if mounted else app
    install(
        app, limiter, on_denied=(lambda request, decision: Response(status_code=420)) if kind == "on_denied" else None
    )
    app.mount("/child", child)

    @inner.get("/")
    async def hello() -> str:
        await limiter.check("ada", "small")
        return "hello"

    async def handler(request: Request, error: RateLimitExceeded) -> Response:
        return JSONResponse({"plan": error.decision.plan}, 420)

    if own:
        inner.add_exception_handler(kind, handler)  # type: ignore[arg-type]  # it takes one kind of error
    async with talk_to(app) as client:
        assert (await client.get("/child/" if mounted else "/")).status_code == 200
        denied = await client.get("/child/" if mounted else "/")
    assert denied.status_code == (429 if kind == "none" else 420)
    assert not own or denied.json() == {"plan": "small"}
    assert {name: denied.headers.get_list(name) for name in FIELDS} == {name: [FIELDS[name]] for name in FIELDS}


class _Wrapper:
    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.wrapped(scope, receive, send)


def _by_a_function(app: Any) -> Any:
    proxy = current_app  # of no use here: it raises an error for every attribute

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        assert proxy is not app
        await app(scope, receive, send)

    return middleware


@pytest.mark.parametrize(
    "around",
    [_by_a_function, partial, attrgetter("__call__"), _Wrapper, lambda app: _Wrapper(_by_a_function(partial(app)))],
    ids=["function", "partial", "method", "object", "all"],
)
async def test_a_denied_check_is_answered_in_an_application_behind_any_kind_of_middleware(around: Any) -> None:
    limiter = AsyncLimiter(plans=PLANS)

    async def hello(request: Request) -> Response:
        await limiter.check("ada", "small")
        return PlainTextResponse("hello")

    app = Starlette(routes=[Mount("/child", around(Starlette(routes=[Route("/", hello)])))])
    starlette.install(app, limiter)
    async with talk_to(app) as client:
        assert await statuses(client, 2, "/child/") == [200, 429]
        denied = await client.get("/child/")
    assert {name: denied.headers[name] for name in FIELDS} == FIELDS


@pytest.mark.parametrize(
    ("around", "path"), [(lambda app: Host("test", app), "/"), (lambda app: Mount("/in", GZipMiddleware(app)), "/in/")]
)
async def test_defaults_leave_routes_of_hosts_and_wrapped_applications_alone(around: Any, path: str) -> None:
    async def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    async def free(request: Request) -> Response:
        return PlainTextResponse("hello")

    own = starlette.rate_limit("large", key=route())(hello)
    child = Starlette(routes=[Route("/own/{id}", own), Route("/free", exempt(free)), Route("/pages/{id}", hello)])
    app = Starlette(routes=[Host("elsewhere", Starlette()), around(child), Route("/pages/{id}", own)])
    limiter = AsyncLimiter(plans=PLANS)
    starlette.install(app, limiter, defaults=[Limit("small", key=route())])
    async with talk_to(app) as client:
        assert await statuses(client, 2, f"{path}free") == [200, 200]
        owned = await client.get(f"{path}own/1")
        assert [(await client.get(f"{path}pages/{id}")).status_code for id in (1, 2)] == [200, 429]
    assert owned.headers.get_list("RateLimit") == ['"large";r=4;t=3600']
    assert (await limiter.peek(f"{path}own/{{id}}", "large")).remaining == 4


async def test_defaults_reach_included_routers_and_mounted_applications() -> None:
    app, child, router = FastAPI(), FastAPI(), APIRouter(prefix="/shops/{shop}")
    install(app, AsyncLimiter(plans=PLANS), defaults=[Limit("small", key=route())])
    router.get("/items/{id}")(_hello)
    router.get("/own/{id}")(rate_limit("large", key=route())(_hello))

    async def free() -> str:
        return "hello"

    router.get("/free/{id}")(exempt(free))
    app.include_router(router, prefix="/v1")
    child.get("/pages/{id}")(_hello)
    app.mount("/child", child)
    async with talk_to(app) as client:
        for paths, expected in [
            (["/v1/shops/a/items/1", "/v1/shops/b/items/2"], [200, 429]),
            (["/v1/shops/a/own/1", "/v1/shops/b/own/2"], [200, 200]),
            (["/v1/shops/a/free/1", "/v1/shops/b/free/2"], [200, 200]),
            (["/child/pages/1", "/child/pages/2"], [200, 429]),
            (["/nowhere/1", "/nowhere/2"], [404, 429]),
        ]:
            assert [(await client.get(path)).status_code for path in paths] == expected, paths
        shown = (await client.get("/v1/shops/c/own/3")).headers["RateLimit"]
    assert shown == '"large";r=2;t=3600'


async def test_default_limits_of_websockets() -> None:
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app = FastAPI()
    app.websocket("/socket")(socket)
    install(app, AsyncLimiter(plans=PLANS), defaults=[Limit("small", key=ALL)])
    assert (await connect(app, "/socket"))[0]["type"] == "websocket.accept"
    assert (await connect(app, "/socket"))[0]["type"] == "websocket.close"


async def test_route_keys_of_starlette_mounts() -> None:
    @starlette.rate_limit("small", key=route())
    async def item(request: Request) -> Response:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Mount("/shop", routes=[Route("/items/{id:int}", item)]), Route("/items/{id}", item)])
    limiter = AsyncLimiter(plans=PLANS)
    starlette.install(app, limiter)
    async with talk_to(app) as client:
        assert [(await client.get(path)).status_code for path in ("/shop/items/1", "/shop/items/2", "/items/1")] == [
            200,
            429,
            200,
        ]
    assert (await limiter.peek("/shop/items/{id:int}", "small")).remaining == 0


async def test_a_stream_is_settled_once_and_before_its_end_is_sent() -> None:
    """A client that has read a response finds its charge."""
    limiter = AsyncLimiter(plans=PLANS)
    at_end: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    rule = PathRule("/", "large", key=ALL, cost=4, cost_of_response=lambda response: 1)
    limited_app = RateLimitMiddleware(app, limiter, [rule])

    async def send(message: Any) -> None:
        at_end.append((await limiter.peek("all", "large")).remaining)

    scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}
    await limited_app(scope, None, send)  # type: ignore[arg-type]  # nothing is received
    assert at_end == [1, 1, 4]


async def test_a_client_who_leaves_while_the_limit_is_asked_gives_the_reservation_back() -> None:
    """The first limit is reserved; the client goes before the second has answered."""
    asked = asyncio.Event()

    async def slow(request: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    limiter = AsyncLimiter(plans=PLANS)
    first = PathRule("/", "large", key=ALL, cost=4, charge_when=lambda response: True)
    app = RateLimitMiddleware(_nothing, limiter, [first, PathRule("/", "small", key=slow)])
    task = asyncio.create_task(_call(app))
    await asyncio.wait_for(asked.wait(), 20)
    assert (await limiter.peek("all", "large")).remaining == 1
    task.cancel()
    await asyncio.wait((task,))
    assert (await limiter.peek("all", "large")).remaining == 5


async def test_a_denial_of_one_limit_gives_back_what_another_reserved() -> None:
    limiter = AsyncLimiter(plans=PLANS)
    reserved = PathRule("/", "large", key=ALL, charge_when=lambda response: True)
    app = RateLimitMiddleware(_nothing, limiter, [reserved, PathRule("/", "small", key=ALL)])
    assert [await _call(app) for _ in range(3)] == [204, 429, 429]
    assert (await limiter.peek("all", "large")).remaining == 4


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _call(app: Any) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}, None, send)
    return int(sent[0]["status"])


# -- OpenAPI -----------------------------------------------------------------------------------------------------------


def test_openapi_shows_the_denial_and_the_fields() -> None:
    app = _fastapi(defaults=DEFAULTS)
    app.get("/free")(exempt(lambda: "hello"))
    app.post("/made", status_code=201)(rate_limit("small", key=ALL, legacy_headers=True)(_hello))
    router = APIRouter(dependencies=[Depends(limited("small", key=ALL))])
    router.get("/included")(_hello)
    app.include_router(router, prefix="/v1")
    paths = app.openapi()["paths"]
    for path in (*PATHS, "/v1/included"):
        responses = paths[path]["get"]["responses"]
        assert set(responses["429"]["headers"]) == {"RateLimit", "RateLimit-Policy", "Retry-After"}, path
        assert list(responses["429"]["content"]) == ["application/problem+json"]
        assert set(responses["200"]["headers"]) == {"RateLimit", "RateLimit-Policy"}
        assert responses["200"]["content"]["application/json"]["schema"]["type"] == "string"
    assert "X-RateLimit-Reset" in paths["/made"]["post"]["responses"]["201"]["headers"]
    assert "429" not in paths["/free"]["get"]["responses"]


def test_openapi_without_limits_shows_none() -> None:
    app = _fastapi()
    assert "429" not in app.openapi()["paths"]["/default"]["get"]["responses"]
    assert app.openapi()["paths"]["/decorated"]["get"]["responses"]["429"]["description"] == "Rate Limit Exceeded"


def test_openapi_keeps_what_the_application_says_of_its_429() -> None:
    app = FastAPI()
    install(app, AsyncLimiter(plans=PLANS))
    app.get("/", responses={429: {"description": "Not so fast"}})(rate_limit("small", key=ALL)(_hello))
    denied = app.openapi()["paths"]["/"]["get"]["responses"]["429"]
    assert denied["description"] == "Not so fast"
    assert "Retry-After" in denied["headers"]


# -- Flask -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/decorated", "/default", "/blue"])
@pytest.mark.parametrize("kind", [RateLimitExceeded, 429])
@pytest.mark.parametrize("before_install", [True, False])
def test_the_handler_of_a_flask_application_answers(path: str, kind: Any, before_install: bool) -> None:
    app = Flask(__name__)

    def handler(error: Any) -> Any:
        return {"plan": error.decision.plan}, 420

    if before_install:
        app.register_error_handler(kind, handler)
    flask.install(app, Limiter(plans=PLANS), defaults=[Limit("small", key=everyone("default"))])
    if not before_install:
        app.register_error_handler(kind, handler)
    blueprint = Blueprint("blue", __name__)
    blueprint.get("/blue")(flask.rate_limit("small", key=ALL)(lambda: "hello"))
    app.register_blueprint(blueprint)
    app.get("/decorated")(flask.rate_limit("small", key=everyone("decorated"))(lambda: "hello"))
    app.add_url_rule("/default", "default", lambda: "hello")
    client = app.test_client()
    assert client.get(path).status_code == 200
    denied = client.get(path)
    assert (denied.status_code, denied.json) == (420, {"plan": "small"})
    assert denied.headers.getlist("Retry-After") == ["3600"]


@pytest.mark.parametrize("kind", ["none", "on_denied", 429, RateLimitExceeded, "subclass"])
def test_a_denied_check_of_flask_is_answered_as_a_limits_denial_is(kind: Any) -> None:
    class TooFast(RateLimitExceeded):
        """An application's own."""

    app, limiter = Flask(__name__), Limiter(plans=PLANS)
    flask.install(app, limiter, on_denied=(lambda request, decision: ("sorry", 420)) if kind == "on_denied" else None)

    @app.get("/")
    def hello() -> str:
        try:
            limiter.check("ada", "small")
        except RateLimitExceeded as error:
            raise (TooFast(error.decision, error.charged) if kind == "subclass" else error) from None
        return "hello"

    def handler(error: Any) -> Any:
        return {"plan": error.decision.plan}, 420

    if kind not in ("none", "on_denied"):
        app.register_error_handler(TooFast if kind == "subclass" else kind, handler)
    client = app.test_client()
    assert client.get("/").status_code == 200
    denied = client.get("/")
    assert denied.status_code == (429 if kind == "none" else 420)
    assert {name: denied.headers.getlist(name) for name in FIELDS} == {name: [FIELDS[name]] for name in FIELDS}


def test_on_denied_of_flask_may_return_what_a_view_may() -> None:
    app = Flask(__name__)
    flask.install(app, Limiter(plans=PLANS))

    @app.get("/")
    @flask.rate_limit("small", key=ALL, on_denied=lambda request, decision: ({"at": request.path}, 503, {"X-Own": "1"}))
    def hello() -> str:
        return "hello"

    client = app.test_client()
    client.get("/")
    denied = client.get("/")
    assert (denied.status_code, denied.json, denied.headers["X-Own"]) == (503, {"at": "/"}, "1")
    assert denied.headers["Retry-After"] == "3600"
