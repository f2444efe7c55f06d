"""What is each framework's own: guards and exception handlers of Litestar, error handlers of Quart, middlewares and
views of aiohttp."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import asyncio
import json
from typing import Any

import litestar
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from litestar.exceptions import TooManyRequestsException
from litestar.testing import AsyncTestClient
from quart import Quart

from paceline import AsyncLimiter, ConfigurationError, FixedWindow, Plan, RateLimitExceeded
from paceline.integrations import aiohttp, quart
from paceline.integrations import litestar as integration
from paceline.integrations.limit import Limit, PathRule
from paceline.limits.keys import everyone, principal

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H")), Plan("large", FixedWindow(limit=5, window="PT1H"))]
ALL = everyone("all")


async def _litestar(*handlers: Any, limiter: AsyncLimiter | None = None, **options: Any) -> list[tuple[int, str]]:
    """What two requests for `/` are answered."""
    plugin = integration.RateLimitPlugin(limiter or AsyncLimiter(plans=PLANS), **options.pop("install", {}))
    app = litestar.Litestar(list(handlers), plugins=[plugin], logging_config=None, **options)
    async with AsyncTestClient(app) as client:
        answers = [await client.get("/") for _ in range(2)]
    assert "Retry-After" in answers[1].headers
    return [(answer.status_code, answer.text) for answer in answers]


async def test_a_guard_of_a_router_limits_and_replaces_the_defaults() -> None:
    limiter = AsyncLimiter(plans=PLANS)

    @litestar.get("/", media_type="text/plain")
    async def hello() -> str:
        return "hello"

    router = litestar.Router("/", guards=[integration.limited("small", key=ALL)], route_handlers=[hello])
    answers = await _litestar(router, limiter=limiter, install={"defaults": [Limit("large", key=ALL)]})
    assert [status for status, _ in answers] == [200, 429]
    assert (await limiter.peek("all", "large")).remaining == 5


@pytest.mark.parametrize("kind", [RateLimitExceeded, TooManyRequestsException, 429])
async def test_the_handler_of_a_litestar_application_answers(kind: Any) -> None:
    def handler(request: Any, error: Any) -> litestar.Response[str]:
        return litestar.Response(error.decision.plan, status_code=420, media_type="text/plain")

    @litestar.get("/", media_type="text/plain")
    @integration.rate_limit("small", key=ALL)
    async def hello() -> str:
        return "hello"

    assert await _litestar(hello, exception_handlers={kind: handler}) == [(200, "hello"), (420, "small")]


async def test_a_check_in_a_litestar_handler_is_answered_alike() -> None:
    limiter = AsyncLimiter(plans=PLANS)

    @litestar.get("/", media_type="text/plain")
    async def hello() -> str:
        await limiter.check("ada", "small")
        return "hello"

    answers = await _litestar(hello, limiter=limiter, install={"on_denied": lambda request, decision: "sorry"})
    assert answers == [(200, "hello"), (429, "sorry")]


FIELDS = {"Retry-After": "3600", "RateLimit": '"small";r=0;t=3600', "RateLimit-Policy": '"small";q=1;w=3600'}


def _only(headers: Any) -> dict[str, str]:
    """The fields of a limit, each of which is there once."""
    assert [name.lower() for name, _ in headers.items()].count("retry-after") == 1
    return {name: headers[name] for name in FIELDS}


class _Own(RateLimitExceeded):
    """An application's own kind of denial."""


@pytest.mark.parametrize("kind", [429, RateLimitExceeded, _Own, "none"])
@pytest.mark.parametrize("answers", [True, False])
async def test_on_denied_of_litestar_comes_before_handlers_for_a_denied_check_too(kind: Any, answers: bool) -> None:
    limiter = AsyncLimiter(plans=PLANS)

    def handler(request: Any, error: Any) -> litestar.Response[str]:
        return litestar.Response(type(error).__name__, status_code=420, media_type="text/plain")

    async def on_denied(request: Any, decision: Any) -> str | None:
        await asyncio.sleep(0)
        return "sorry" if answers else None

    @litestar.get("/", media_type="text/plain", exception_handlers={} if kind == "none" else {kind: handler})
    async def hello() -> str:
        try:
            await limiter.check("ada", "small")
        except RateLimitExceeded as error:
            if kind is _Own:
                raise _Own(error.decision) from None
            raise
        return "hello"

    shown = await _litestar(hello, limiter=limiter, install={"on_denied": on_denied})
    status, text = shown[1]
    if answers:
        assert (status, text) == (429, "sorry")
    elif kind == "none":
        assert (status, json.loads(text)["title"]) == (429, "Rate Limit Exceeded")
    else:
        assert (status, text) == (420, {429: "_Denied"}.get(kind, getattr(kind, "__name__", "")))


@pytest.mark.parametrize("kind", ["none", "on_denied", 429, TooManyRequestsException, RateLimitExceeded])
@pytest.mark.parametrize("of_handler", [True, False])
async def test_a_denied_check_of_litestar_is_answered_as_a_limits_denial_is(kind: Any, of_handler: bool) -> None:
    limiter = AsyncLimiter(plans=PLANS)

    def answer(request: Any, error: Any) -> litestar.Response[str]:
        return litestar.Response(error.decision.plan, status_code=420)

    own: Any = {} if kind in ("none", "on_denied") else {"exception_handlers": {kind: answer}}

    @litestar.get("/", **(own if of_handler else {}))
    async def hello() -> str:
        await limiter.check("ada", "small")
        return "hello"

    sorry: Any = (lambda request, decision: litestar.Response("", status_code=420)) if kind == "on_denied" else None
    plugin = integration.RateLimitPlugin(limiter, on_denied=sorry)
    app = litestar.Litestar([hello], plugins=[plugin], logging_config=None, **({} if of_handler else own))
    async with AsyncTestClient(app) as client:
        assert (await client.get("/")).status_code == 200
        denied = await client.get("/")
    assert denied.status_code == (429 if kind == "none" else 420)
    assert _only(denied.headers) == FIELDS


@pytest.mark.parametrize("kind", ["none", "on_denied", 429, RateLimitExceeded])
async def test_a_denied_check_of_quart_is_answered_as_a_limits_denial_is(kind: Any) -> None:
    app, limiter = Quart(__name__), AsyncLimiter(plans=PLANS)
    quart.install(app, limiter, on_denied=(lambda request, decision: ("sorry", 420)) if kind == "on_denied" else None)

    @app.get("/")
    async def hello() -> str:
        await limiter.check("ada", "small")
        return "hello"

    async def handler(error: Any) -> Any:
        return {"plan": error.decision.plan}, 420

    if kind not in ("none", "on_denied"):
        app.register_error_handler(kind, handler)
    client = app.test_client()
    assert (await client.get("/")).status_code == 200
    denied = await client.get("/")
    assert denied.status_code == (429 if kind == "none" else 420)
    assert _only(denied.headers) == FIELDS


@pytest.mark.parametrize("on_denied", [None, lambda request, decision: "sorry"])
async def test_a_denied_check_of_aiohttp_has_the_fields_of_a_limits_denial(on_denied: Any) -> None:
    limiter = AsyncLimiter(plans=PLANS)

    async def hello(request: web.Request) -> web.Response:
        await limiter.check("ada", "small")
        return web.Response(text="hello")

    async with _aiohttp({"/": hello}, limiter=limiter, on_denied=on_denied) as client:
        assert (await client.get("/")).status == 200
        denied = await client.get("/")
        assert denied.status == 429
        assert _only(denied.headers) == FIELDS


def test_above_the_routes_decorator_it_would_limit_nothing() -> None:
    with pytest.raises(ConfigurationError, match="below the route's decorator"):

        @integration.rate_limit("small", key=ALL)
        @litestar.get("/")
        async def hello() -> str:
            return "hello"


@pytest.mark.parametrize("kind", [RateLimitExceeded, 429])
async def test_the_handler_of_a_quart_application_answers(kind: Any) -> None:
    app = Quart(__name__)

    async def handler(error: Any) -> Any:
        return {"plan": error.decision.plan}, 420

    app.register_error_handler(kind, handler)
    quart.install(app, AsyncLimiter(plans=PLANS), rules=[PathRule("/ruled", "small", key=everyone("rule"))])

    @app.get("/")
    @quart.rate_limit("small", key=ALL)
    def hello() -> str:
        return "hello"

    @app.get("/ruled")
    async def ruled() -> str:
        return "hello"

    client = app.test_client()
    for path in ("/", "/ruled"):
        assert (await client.get(path)).status_code == 200
        denied = await client.get(path)
        assert (denied.status_code, await denied.get_json()) == (420, {"plan": "small"})
        assert denied.headers.getlist("Retry-After") == ["3600"]


async def test_a_middleware_of_an_aiohttp_application_answers() -> None:
    @web.middleware
    async def sorry(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except RateLimitExceeded as error:
            return web.Response(text=error.decision.plan, status=420 if isinstance(error, web.HTTPException) else 500)

    @aiohttp.rate_limit("small", key=ALL)
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with _aiohttp({"/": hello}, middlewares=[sorry]) as client:
        assert (await client.get("/")).status == 200
        denied = await client.get("/")
        assert (denied.status, await denied.text()) == (420, "small")
        assert denied.headers.getall("Retry-After") == ["3600"]


def _aiohttp(handlers: dict[str, Any], middlewares: Any = (), **options: Any) -> Any:
    app = web.Application(middlewares=middlewares)
    for path, handler in handlers.items():
        app.router.add_route("*", path, handler)
    aiohttp.install(app, options.pop("limiter", None) or AsyncLimiter(plans=PLANS), **options)
    return TestClient(TestServer(app))


async def test_views_rules_and_checks_of_aiohttp() -> None:
    limiter = AsyncLimiter(plans=PLANS)

    class View(web.View):
        @aiohttp.rate_limit("small", key=ALL)
        async def get(self) -> web.Response:
            return web.Response(text="hello")

        @aiohttp.exempt
        async def post(self) -> web.Response:
            return web.Response(text="hello")

    async def checked(request: web.Request) -> web.Response:
        await limiter.check("ada", "small")
        return web.Response(text="hello")

    @aiohttp.rate_limit("small", key=principal())
    async def known(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def ruled(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with _aiohttp(
        {"/view": View, "/checked": checked, "/ruled": ruled, "/known": known},
        limiter=limiter,
        rules=[PathRule("/ruled", "large", key=ALL)],
        defaults=[Limit("large", key=everyone("default"))],
        principal=lambda request: request.headers.get("X-User"),
    ) as client:
        assert [(await client.get("/view")).status for _ in range(2)] == [200, 429]
        assert [(await client.post("/view")).status for _ in range(2)] == [200, 200]
        assert [(await client.get("/checked")).status for _ in range(2)] == [200, 429]
        assert "Retry-After" in (await client.get("/checked")).headers
        assert "RateLimit" in (await client.get("/ruled")).headers
        statuses = [(await client.get("/known", headers={"X-User": name})).status for name in ("ada", "bob", "bob")]
        assert statuses == [429, 200, 429]  # `checked` has charged ada
        assert (await client.get("/known")).status == 400


async def test_sub_applications_of_aiohttp_are_limited_by_the_one_around_them() -> None:
    @aiohttp.rate_limit("small", key=aiohttp.route())
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    child = web.Application()
    child.router.add_get("/items/{id}", hello)
    app = web.Application()
    app.add_subapp("/child", child)
    limiter = AsyncLimiter(plans=PLANS)
    aiohttp.install(app, limiter)
    async with TestClient(TestServer(app)) as client:
        first = await client.get("/child/items/1")
        assert (first.status, first.headers["RateLimit"]) == (200, '"small";r=0;t=3600')
        assert (await client.get("/child/items/2")).status == 429
    assert (await limiter.peek("/child/items/{id}", "small")).remaining == 0


def test_only_async_handlers_of_aiohttp_are_limited() -> None:
    with pytest.raises(ConfigurationError, match=r"web\.View"):
        aiohttp.rate_limit("small", key=ALL)(type("View", (web.View,), {}))
