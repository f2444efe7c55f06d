"""Answers under the decorators, whichever framework calls the endpoint: Starlette, Django REST framework, a mounted
one."""

# Django publishes no types.
# mypy: allow-subclassing-any, allow-untyped-decorators

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils.decorators import method_decorator
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()

from paceline import AsyncLimiter, ConfigurationError, FixedWindow, Limiter, Plan, RateLimitExceeded
from paceline.integrations import django as django_integration
from paceline.integrations import flask
from paceline.integrations.asgi import PathRule, RateLimitMiddleware
from paceline.integrations.fastapi import everyone, header, install, rate_limit
from tests.integration.asgi_calls import connect, talk_to

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H")), Plan("large", FixedWindow(limit=5, window="P1D"))]
urlpatterns: list[Any] = []


@rate_limit("small", key=everyone("async"))
async def hello_async(request: Request) -> Response:
    return PlainTextResponse(f"hello {request.method}")


@rate_limit("small", key=everyone("sync"))
def hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {request.method}")


class Hello(HTTPEndpoint):
    @rate_limit("small", key=header("X-API-Key", default="class"))
    async def get(self, request: Request) -> Response:
        return PlainTextResponse(f"hello {request.method}")


@rate_limit("small", key=everyone("socket"))
async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


ROUTES = [
    Route("/async", hello_async),
    Route("/sync", hello),
    Route("/class", Hello),
    WebSocketRoute("/socket", socket),
]


@pytest.mark.parametrize("path", ["/async", "/sync", "/class"])
@pytest.mark.parametrize("mounted", [False, True])
async def test_starlette_endpoints_are_limited(path: str, mounted: bool) -> None:
    app = Starlette(routes=[Mount("/in", routes=ROUTES)] if mounted else ROUTES)
    install(app, AsyncLimiter(plans=PLANS))
    async with talk_to(app) as client:
        first = await client.get(f"/in{path}" if mounted else path)
        assert (first.status_code, first.text) == (200, "hello GET")
        assert first.headers["RateLimit"] == '"small";r=0;t=3600'
        denied = await client.get(f"/in{path}" if mounted else path)
        assert denied.status_code == 429
        assert denied.headers["Content-Type"] == "application/problem+json"


async def test_starlette_routes_in_a_fastapi_application_are_limited() -> None:
    app = FastAPI(routes=list(ROUTES))
    install(app, AsyncLimiter(plans=PLANS))
    async with talk_to(app) as client:
        assert [(await client.get("/async")).status_code for _ in range(2)] == [200, 429]
    assert (await connect(app, "/socket"))[0]["type"] == "websocket.accept"
    assert (await connect(app, "/socket"))[0]["type"] == "websocket.close"


async def test_an_error_raised_in_a_mounted_application_is_a_denial() -> None:
    limiter = AsyncLimiter(plans=PLANS)
    app, child, grandchild = FastAPI(), FastAPI(), Starlette()

    @child.get("/check")
    async def check() -> str:
        await limiter.check("ada", "small")
        return "hello"

    async def check_below(request: Request) -> Response:
        await limiter.check("ada", "small")
        return PlainTextResponse("hello")

    grandchild.add_route("/check", check_below)
    child.mount("/grandchild", grandchild)
    app.mount("/child", child)
    install(app, limiter)
    async with talk_to(app) as client:
        assert (await client.get("/child/check")).status_code == 200
        for path in ("/child/check", "/child/grandchild/check"):
            denied = await client.get(path)
            assert denied.status_code == 429
            assert denied.headers["Content-Type"] == "application/problem+json"
            assert denied.headers["Retry-After"] == "3600"


async def test_so_it_is_in_an_application_that_is_wrapped_or_mounted_late() -> None:
    limiter = AsyncLimiter(plans=PLANS)

    async def check(request: Request) -> Response:
        await limiter.check(request.url.path, "small")
        return PlainTextResponse("hello")

    def child() -> Starlette:
        return Starlette(routes=[Route("/check", check)])

    app, used = FastAPI(), child()
    install(app, limiter)
    app.mount("/wrapped", GZipMiddleware(RateLimitMiddleware(child(), limiter, [])))
    async with talk_to(used) as client:
        assert (await client.get("/check")).status_code == 200
    app.mount("/used", used)
    async with talk_to(app) as client:
        assert (await client.get("/nowhere")).status_code == 404
        app.mount("/late", child())
        for path in ("/wrapped/check", "/used/check", "/late/check"):
            answers = [await client.get(path) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 429], path
            assert answers[1].headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    "cost",
    [*(lambda request, cost=cost: cost for cost in (None, "5", 1.5, True, 0, -1, 9)), 9],
    ids=["None", "text", "float", "bool", "zero", "negative", "above the capacity", "fixed"],
)
async def test_a_wrong_cost_of_the_applications_own_is_a_server_error(
    cost: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()
    install(app, AsyncLimiter(plans=PLANS))
    app.get("/")(rate_limit("large", key=everyone("all"), cost=cost)(lambda: "hello"))
    sites: list[Any] = [app]

    async def greet(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("hello")(scope, receive, send)

    rules = [PathRule("/", "large", key=everyone("all"), cost=cost)]
    sites.append(RateLimitMiddleware(greet, AsyncLimiter(plans=PLANS), rules))
    sites.append(RateLimitMiddleware(greet, Limiter(plans=PLANS), rules * 2))
    for site in sites:
        caplog.clear()
        async with talk_to(site) as client:
            with pytest.raises(ConfigurationError, match=r"^cost: "):
                await client.get("/")
        assert [record.levelno for record in caplog.records if "cost" in record.getMessage()] == [logging.ERROR]
    shop = Flask(__name__)
    flask.install(shop, Limiter(plans=PLANS))
    shop.add_url_rule("/", "hello", flask.rate_limit("large", key=everyone("all"), cost=cost)(lambda: "hello"))
    caplog.clear()
    assert shop.test_client().get("/").status_code == 500
    assert [record.name for record in caplog.records if "cost is wrong" in record.getMessage()] == [
        "paceline.integrations"
    ]


@pytest.fixture
def on_django() -> Iterator[None]:
    django_integration._request_limiter.cache_clear()
    with override_settings(PACELINE_LIMITER=Limiter(plans=PLANS)):
        yield
    django_integration._request_limiter.cache_clear()


@pytest.mark.parametrize("cost", [0, 9])
def test_a_wrong_cost_of_a_django_application_is_a_server_error(
    cost: int, on_django: None, caplog: pytest.LogCaptureFixture
) -> None:
    limited = django_integration.rate_limit("large", key=everyone("all"), cost=lambda request: cost)
    with pytest.raises(ConfigurationError, match=r"^cost: "):
        limited(lambda request: None)(RequestFactory().get("/"))
    assert [record.levelno for record in caplog.records if "cost is wrong" in record.getMessage()] == [logging.ERROR]


def test_a_denied_check_of_django_has_the_fields_of_a_limits_denial(on_django: None) -> None:
    limiter = settings.PACELINE_LIMITER
    limiter.acquire("ada", "small")
    with pytest.raises(RateLimitExceeded) as raised:
        limiter.check("ada", "small")
    middleware = django_integration.RateLimitMiddleware(lambda request: HttpResponse())
    denied = middleware.process_exception(RequestFactory().get("/"), raised.value)
    fields = {name: denied[name] for name in ("Retry-After", "RateLimit", "RateLimit-Policy")}
    assert fields == {
        "Retry-After": "3600",
        "RateLimit": '"small";r=0;t=3600',
        "RateLimit-Policy": '"small";q=1;w=3600',
    }


def rest_views() -> dict[str, Any]:
    from rest_framework.decorators import api_view
    from rest_framework.response import Response as RestResponse
    from rest_framework.views import APIView

    limited = django_integration.rate_limit("small", key=header("X-API-Key"))

    class OnDispatch(APIView):
        authentication_classes, permission_classes = (), ()

        def get(self, request: Any) -> Any:
            return RestResponse({"hello": "world"})

    class OnMethod(APIView):
        authentication_classes, permission_classes = (), ()

        @method_decorator(limited)
        def get(self, request: Any) -> Any:
            return RestResponse({"hello": "world"})

    class OnMethodPlainly(APIView):
        authentication_classes, permission_classes = (), ()

        @limited
        def get(self, request: Any) -> Any:
            return RestResponse({"hello": "world"})

    def hello(request: Any) -> Any:
        return RestResponse({"hello": "world"})

    plain = api_view(["GET"])
    hello.authentication_classes = hello.permission_classes = ()  # type: ignore[attr-defined]
    return {
        "above": limited(plain(hello)),
        "below": plain(limited(hello)),
        "dispatch": method_decorator(limited, name="dispatch")(OnDispatch).as_view(),
        "method": OnMethod.as_view(),
        "method, plainly": OnMethodPlainly.as_view(),
    }


@pytest.mark.parametrize("way", ["above", "below", "dispatch", "method", "method, plainly"])
@pytest.mark.usefixtures("on_django")
def test_views_of_the_rest_framework_are_limited(way: str) -> None:
    with override_settings(REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_RENDERER_CLASSES": RENDERERS}):
        view = rest_views()[way]

        def ask(**headers: str) -> HttpResponse:
            return view(RequestFactory().get("/", headers=headers))

        first = ask(**{"X-API-Key": "ada"})
        assert first.status_code == 200
        assert first.headers["RateLimit"] == '"small";r=0;t=3600'
        denied = ask(**{"X-API-Key": "ada"})
        assert denied.status_code == 429
        assert denied.headers["Content-Type"] == "application/problem+json"
        assert denied.headers["Retry-After"] == "3600"
        assert ask().status_code == 400


RENDERERS = ["rest_framework.renderers.JSONRenderer"]


@pytest.mark.usefixtures("on_django")
def test_a_method_of_a_django_view_may_be_limited_plainly() -> None:
    from django.views import View

    class Plain(View):
        @django_integration.rate_limit("small", key=django_integration.client_address())
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    view = Plain.as_view()
    assert [view(RequestFactory().get("/")).status_code for _ in range(2)] == [200, 429]
