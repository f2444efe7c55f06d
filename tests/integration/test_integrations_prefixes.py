"""Rules by path under a URL prefix: they hold for the application's own paths, wherever it is served or mounted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import django
import httpx2 as httpx
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, re_path
from django.urls import path as route
from fastapi import APIRouter, FastAPI
from flask import Flask
from litestar import Litestar, WebSocket, asgi, get, post, websocket
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.routing import BaseConverter
from werkzeug.test import Client as WsgiClient

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()

from paceline import Limiter
from paceline.integrations import django as django_integration
from paceline.integrations import flask as flask_integration
from paceline.integrations.asgi import PathRule, RateLimitMiddleware, method
from tests.integration.asgi_calls import connect
from tests.integration.path_rules import PLANS, rule, warnings

DJANGO = "paceline.integrations.django.RateLimitMiddleware"


def hello(*_: Any, **__: Any) -> Any:
    return PlainTextResponse("hello")


def greet(*_: Any, **__: Any) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns: list[Any] = [
    route("login", greet),
    re_path("^both/?$", greet),
    route("users/<int:id>/", greet),
    route("in/", include([route("login", greet)])),
]


def starlette(*rules: PathRule, routes: list[Any] | None = None) -> Starlette:
    served = [Route("/login", hello, methods=["GET", "POST"])] if routes is None else routes
    return Starlette(
        routes=served, middleware=[Middleware(RateLimitMiddleware, limiter=Limiter(plans=PLANS), rules=rules)]
    )


async def statuses(app: Any, *paths: str, root_path: str = "", **options: Any) -> list[int]:
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return [(await client.get(path, **options)).status_code for path in paths]


async def start(app: Any) -> None:
    """Runs an ASGI application's start and end."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        assert "failed" not in message["type"]

    await app({"type": "lifespan", "state": {}}, receive, send)


@pytest.fixture
def on_django() -> Iterator[Any]:
    def use(*rules: PathRule, kind: Any = WSGIHandler, **values: Any) -> Any:
        # Applied until the test ends: Django reads its settings with every request.
        overridden = override_settings(
            ROOT_URLCONF=__name__,
            MIDDLEWARE=[DJANGO],
            PACELINE_LIMITER=Limiter(plans=PLANS),
            PACELINE_RULES=rules,
            **values,
        )
        overridden.enable()
        opened.append(overridden)
        return kind()

    opened: list[Any] = []
    django_integration._request_limiter.cache_clear()
    yield use
    for overridden in opened:
        overridden.disable()
    django_integration._request_limiter.cache_clear()


async def test_an_asgi_rule_holds_under_a_root_path() -> None:
    # As uvicorn --root-path has it: the path begins with the prefix.
    assert await statuses(starlette(rule()), "/api/login", "/api/login", root_path="/api") == [200, 429]
    wrapped = RateLimitMiddleware(Starlette(routes=[Route("/login", hello)]), Limiter(plans=PLANS), [rule()])
    assert await statuses(wrapped, "/api/login", "/api/login", root_path="/api") == [200, 429]


async def test_an_asgi_rule_holds_behind_a_proxy_that_strips_the_prefix() -> None:
    assert await statuses(starlette(rule()), "/login", "/login", root_path="/api") == [200, 429]


async def test_a_prefix_ends_at_a_slash() -> None:
    app = starlette(rule("/login"), routes=[Route("/{all:path}", hello)])
    assert await statuses(app, "/apilogin", "/apilogin", root_path="/api") == [200, 200]


async def test_an_asgi_rule_holds_in_a_mounted_application() -> None:
    parent = Starlette(routes=[Mount("/shop", starlette(rule()))])
    assert await statuses(parent, "/shop/login", "/shop/login") == [200, 429]


async def test_the_root_of_a_mounted_application_is_a_path() -> None:
    async def child(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("hello")(scope, receive, send)

    limited = RateLimitMiddleware(child, Limiter(plans=PLANS), [rule("/")])
    assert await statuses(limited, "/shop", "/shop/", root_path="/shop") == [200, 429]


async def test_a_rule_around_a_fastapi_application_knows_its_root_path() -> None:
    app = FastAPI()
    app.root_path = "/api"  # the parameter of this name is deprecated, and still used
    app.get("/login")(lambda: "hello")
    limited = RateLimitMiddleware(app, Limiter(plans=PLANS), [rule()])
    assert await statuses(limited, "/api/login", "/api/login") == [200, 429]


async def test_a_rule_around_middlewares_knows_the_root_path_of_the_fastapi_application_inside() -> None:
    app = FastAPI()
    app.root_path = "/api"
    app.get("/login")(lambda: "hello")
    for between in (GZipMiddleware(app), RateLimitMiddleware(app, Limiter(), [])):
        limited = RateLimitMiddleware(between, Limiter(plans=PLANS), [rule()])
        assert await statuses(limited, "/api/login", "/api/login") == [200, 429]


async def test_a_rule_around_a_quart_application_holds_under_a_prefix() -> None:
    # Quart's `root_path` is a folder on the disk.
    app: Any = Quart(__name__)
    app.get("/login")(greeting)
    limited = RateLimitMiddleware(app, Limiter(plans=PLANS), [rule()])
    assert await statuses(limited, "/api/login", "/api/login", root_path="/api") == [200, 429]
    limited = RateLimitMiddleware(app, Limiter(plans=PLANS), [rule()])
    assert await statuses(Starlette(routes=[Mount("/shop", limited)]), "/shop/login", "/shop/login") == [200, 429]


async def greeting() -> str:
    return "hello"


async def served(app: Any, method: str, path: str, root_path: str = "") -> int:
    """The status of a request whose method and path are as a server hands them on, which a client would correct."""
    sent: list[Any] = []
    body = [{"type": "http.request", "body": b""}]

    async def receive() -> dict[str, Any]:
        return body.pop() if body else await asyncio.Future()  # the client stays

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": root_path}
    scope |= {"scheme": "http", "http_version": "1.1", "query_string": b"", "headers": [(b"host", b"test")]}
    await app({**scope, "client": ("198.51.100.7", 1), "server": ("test", 80), "state": {}}, receive, send)
    return int(sent[0]["status"])


def quart_site() -> Any:
    app = Quart(__name__)

    @app.post("/login")
    async def login() -> str:
        return "hello"

    return app


def quart_site_by_its_attribute() -> Any:
    """As Quart's documentation adds a middleware."""
    app = quart_site()
    return app.asgi_app


def litestar_site() -> Any:
    @post("/login", status_code=200)
    async def login() -> str:
        return "hello"

    return Litestar([login], logging_config=None)


SITES = [quart_site, quart_site_by_its_attribute, litestar_site]


@pytest.mark.parametrize("framework", ["quart", "django"])
async def test_the_case_of_a_method_passes_no_rule(framework: str, on_django: Any) -> None:
    # uvicorn hands a method on as it came, if it parses by h11. Both serve it as POST.
    site = quart_site() if framework == "quart" else on_django(kind=ASGIHandler)
    app = RateLimitMiddleware(site, Limiter(plans=PLANS), [rule(methods=["POST"])])

    assert [await served(app, name, "/login") for name in ("POST", "post", "Post")] == [200, 429, 429]


async def test_the_case_of_a_method_makes_no_new_key() -> None:
    app = RateLimitMiddleware(quart_site(), Limiter(plans=PLANS), [PathRule("/*", "logins", key=method())])

    assert [await served(app, name, "/login") for name in ("POST", "post")] == [200, 429]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("path", ["login", "http://test/login"])
async def test_a_target_without_a_slash_passes_no_rule(site: Any, path: str) -> None:
    app = RateLimitMiddleware(site(), Limiter(plans=PLANS), [rule()])

    assert await served(app, "POST", "/login") == 200
    assert await served(app, "POST", path) == 429


@pytest.mark.parametrize(
    ("site", "path"),
    [*((site, "/apilogin") for site in SITES), (litestar_site, "/x/api/login"), (quart_site, "/api/login")],
)
async def test_a_prefix_that_ends_at_no_slash_or_begins_later_passes_no_rule(site: Any, path: str) -> None:
    # Both serve what follows the prefix. Litestar does wherever that is in the path.
    app = RateLimitMiddleware(site(), Limiter(plans=PLANS), [rule()])

    assert await served(app, "POST", path, "/api") == 200
    assert await served(app, "POST", path, "/api") == 429


async def test_a_websocket_is_held_under_a_root_path() -> None:
    async def accept(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    app = RateLimitMiddleware(accept, Limiter(plans=PLANS), [rule("/ws")])
    kinds = [(await connect(app, "/api/ws", root_path="/api"))[0]["type"] for _ in range(2)]
    assert kinds == ["websocket.accept", "websocket.close"]


def test_a_django_rule_holds_under_a_script_name(on_django: Any) -> None:
    client = WsgiClient(on_django(rule()))
    statuses = [client.get("/login", environ_overrides={"SCRIPT_NAME": "/shop"}).status_code for _ in range(2)]
    assert statuses == [200, 429]


async def test_a_django_rule_holds_under_a_root_path(on_django: Any) -> None:
    app = on_django(rule(), kind=ASGIHandler)
    assert await statuses(app, "/shop/login", "/shop/login", root_path="/shop") == [200, 429]


def test_a_django_rule_holds_under_force_script_name(on_django: Any) -> None:
    client = WsgiClient(on_django(rule(), FORCE_SCRIPT_NAME="/shop"))
    assert [client.get("/login").status_code for _ in range(2)] == [200, 429]


def flask(*rules: PathRule, **options: Any) -> Flask:
    app = Flask(__name__)
    flask_integration.install(app, Limiter(plans=PLANS), rules)
    app.add_url_rule("/login", "login", lambda: "hello", methods=["GET"], **options)
    app.add_url_rule("/users/<int:id>/", "users", lambda id: "hello", **options)
    return app


def test_a_flask_rule_holds_in_a_mounted_application() -> None:
    client = WsgiClient(DispatcherMiddleware(Flask("parent"), {"/shop": flask(rule())}))
    assert [client.get("/shop/login").status_code for _ in range(2)] == [200, 429]


def test_a_slash_at_the_end_passes_no_flask_rule() -> None:
    client = flask(rule(), strict_slashes=False).test_client()
    assert [client.get(path).status_code for path in ("/login", "/login/", "/login")] == [200, 429, 429]


def test_a_path_without_its_slash_passes_no_flask_rule() -> None:
    client = flask(rule("/users/7/*"), strict_slashes=False).test_client()
    assert [client.get(path).status_code for path in ("/users/7/", "/users/7")] == [200, 429]


def test_a_slash_at_the_end_passes_no_django_rule(on_django: Any) -> None:
    client = WsgiClient(on_django(rule("/both")))
    assert [client.get(path).status_code for path in ("/both/", "/both", "/both/")] == [200, 429, 429]


async def test_a_slash_at_the_end_passes_no_asgi_rule() -> None:
    app = starlette(rule(), routes=[Route("/login", hello), Route("/login/", hello)])
    assert await statuses(app, "/login/", "/login") == [200, 429]
    app = starlette(rule("/login/"), routes=[Route("/login", hello), Route("/login/", hello)])
    assert await statuses(app, "/login/", "/login") == [200, 429]


async def test_a_newline_at_the_end_passes_no_asgi_rule() -> None:
    # Starlette's routes end in `$`, which also matches before a newline at the end.
    assert await statuses(starlette(rule()), "/login", "/login%0A", "/login%0A") == [200, 429, 429]
    app = starlette(rule("/login/"), routes=[Route("/login/", hello)])
    assert await statuses(app, "/login/", "/login/%0A") == [200, 429]
    app = starlette(rule("/us*"), routes=[Route("/users/{name}", hello)])
    assert await statuses(app, "/users/ada", "/users/ada%0A") == [200, 429]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("/login", ["/login", "/login//", "/login///", "//login"]),
        ("/api/v1", ["/api/v1", "/api//v1", "//api/v1//"]),
        ("/api//v1/", ["/api/v1", "/api//v1"]),
        ("/api/v[12]", ["/api/v1", "//api/v1"]),
        ("/", ["/", "//"]),
    ],
)
async def test_more_slashes_pass_no_rule(pattern: str, paths: list[str], caplog: pytest.LogCaptureFixture) -> None:
    # Litestar serves runs of slashes as one.
    app: Any = Litestar([get(["/login", "/api/v1", "/"])(greeting)], openapi_config=None, logging_config=None)
    limited = RateLimitMiddleware(app, Limiter(plans=PLANS), [rule(pattern)])
    transport = httpx.ASGITransport(limited)
    async with httpx.AsyncClient(transport=transport) as client:
        found = [(await client.get(f"http://test{path}")).status_code for path in paths]
    assert found == [200, *[429] * (len(paths) - 1)]
    assert warnings(caplog) == []


async def test_a_rule_for_head_limits_head_alone(caplog: pytest.LogCaptureFixture) -> None:
    app = starlette(rule(methods=["head"]))
    assert await statuses(app, "/login", "/login") == [200, 200]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert [(await client.head("/login")).status_code for _ in range(2)] == [200, 429]
    assert await statuses(app, "/login") == [200]
    assert warnings(caplog) == []
    await start(starlette(rule(methods=["HEAD"]), routes=[Route("/login", hello, methods=["POST"])]))
    assert len(warnings(caplog)) == 1


async def test_a_rule_for_get_limits_head_too() -> None:
    app = starlette(rule(methods=["GET"]))
    assert await statuses(app, "/login") == [200]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.head("/login")).status_code == 429


def included() -> FastAPI:
    app, router, child = FastAPI(), APIRouter(prefix="/v1"), FastAPI()
    router.get("/login")(lambda: "hello")
    router.post("/users/{id:int}/posts")(lambda id: "hello")
    child.get("/login")(lambda: "hello")
    app.include_router(router, prefix="/api")
    app.mount("/child", child)
    app.mount("/files", lambda scope, receive, send: None)  # type: ignore[arg-type,return-value]
    return app


@pytest.mark.parametrize(
    ("pattern", "options", "unmatched"),
    [
        ("/api/v1/login", {}, False),
        ("/api/v1/login/", {}, False),
        ("/api/*", {}, False),
        ("*", {}, False),
        ("/api/v1/users/7/posts", {}, False),
        ("/api/v?/login", {}, False),
        ("/api/v[12]/login", {}, False),
        ("/child/login", {}, False),
        ("/files/any/thing", {}, False),
        ("/api/v1/login", {"methods": ["GET"]}, False),
        ("/login", {}, True),
        ("/v1/*", {}, True),
        ("/api/v1/login", {"methods": ["POST"]}, True),
        ("/api/v1/users/7/8/posts", {}, True),
        ("/child/logout", {}, True),
    ],
)
async def test_a_rule_that_matches_no_route_is_named_at_the_start(
    pattern: str, options: dict[str, Any], unmatched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = included()
    app.add_middleware(RateLimitMiddleware, limiter=Limiter(plans=PLANS), rules=[rule(pattern, **options)])
    await start(app)
    messages = warnings(caplog)
    assert bool(messages) is unmatched
    assert all(f"PathRule({pattern!r}, 'logins'" in message for message in messages)
    await statuses(app, "/")
    assert warnings(caplog) == messages, "it is logged once"


async def test_it_is_named_also_around_an_application_and_in_a_mounted_one(caplog: pytest.LogCaptureFixture) -> None:
    await start(RateLimitMiddleware(included(), Limiter(plans=PLANS), [rule("/lgin")]))
    assert len(warnings(caplog)) == 1
    # A mounted application gets no lifespan events; it is checked at its first request.
    parent = Starlette(routes=[Mount("/shop", starlette(rule("/shop/login")))])
    await start(parent)
    assert await statuses(parent, "/shop/login", "/shop/login") == [200, 200]
    assert len(warnings(caplog)) == 2


async def test_a_middleware_around_a_mounted_application_judges_by_its_routes(caplog: pytest.LogCaptureFixture) -> None:
    child = Starlette(routes=[Route("/login", hello)])
    limited = RateLimitMiddleware(child, Limiter(plans=PLANS), [rule("/login"), rule("/shop/login")])
    parent = Starlette(routes=[Mount("/shop", limited)])
    assert await statuses(parent, "/shop/login", "/shop/login") == [200, 429]
    assert [message.split(",")[0] for message in warnings(caplog)] == ["PathRule('/shop/login'"]


async def test_no_rule_of_a_mounted_application_is_judged_by_the_routes_around_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = RateLimitMiddleware(PlainTextResponse("hello"), Limiter(plans=PLANS), [rule()])
    parent = Starlette(routes=[Mount("/shop", limited)])
    assert await statuses(parent, "/shop/login", "/shop/login") == [200, 429]
    assert warnings(caplog) == []


async def test_litestar_names_a_rule_that_matches_no_route(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(scope: Any, receive: Any, send: Any) -> None: ...

    async def talk(socket: WebSocket[Any, Any, Any]) -> None: ...

    served = [get(["/", "/login", "/users/{id:int}"])(greeting), asgi("/files", is_mount=True, copy_scope=True)(serve)]
    app: Any = Litestar([*served, websocket("/chat")(talk)], openapi_config=None, logging_config=None)
    matching = [rule(path) for path in ("/", "/login", "/users/7", "/files/any/thing", "/chat")]
    unmatched = [rule("/login/typo"), rule("/users/7/8"), rule("/chat/typo")]
    of_methods = [rule("/chat", methods=["GET"]), rule("/login", methods=["POST"])]
    await start(RateLimitMiddleware(app, Limiter(plans=PLANS), [*matching, *unmatched, *of_methods]))
    names = ["'/login/typo'", "'/users/7/8'", "'/chat/typo'", "'/login'"]
    assert [message.split(",")[0] for message in warnings(caplog)] == [f"PathRule({name}" for name in names]


def test_flask_names_a_rule_that_matches_no_route(caplog: pytest.LogCaptureFixture) -> None:
    app = flask(rule("/users/7"), rule("/lgin"), rule("/login", methods=["POST"]), rule("/static/*"))
    for _ in range(2):
        app.test_client().get("/")
    assert ["'/lgin'" in warnings(caplog)[0], "['POST']" in warnings(caplog)[1]] == [True, True]
    assert len(warnings(caplog)) == 2


def test_django_names_a_rule_that_matches_no_route(on_django: Any, caplog: pytest.LogCaptureFixture) -> None:
    on_django(rule("/users/7"), rule("/lgin"), rule("/both"), rule("/both/or"), rule("/users/7/8"), rule("/in/login"))
    assert [message.split(",")[0] for message in warnings(caplog)] == ["PathRule('/lgin'", "PathRule('/users/7/8'"]


def test_a_flask_rule_for_a_converter_with_parentheses_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    class Regex(BaseConverter):
        def __init__(self, url_map: Any, *items: str) -> None:
            super().__init__(url_map)
            self.regex = items[0]

    app = Flask(__name__)
    app.url_map.converters["regex"] = Regex
    for name, path in (("one", '/one/<regex("(a|b)"):kind>/z'), ("two", "/two/<regex('x>y'):kind>/z")):
        app.add_url_rule(path, name, lambda **_: "hello")
    flask_integration.install(app, Limiter(plans=PLANS), [rule("/one/a/z"), rule("/two/x>y/z"), rule("/three/a/z")])
    with caplog.at_level(logging.WARNING):
        assert app.test_client().get("/one/a/z").status_code == 200
    assert [record.getMessage().partition(" matches no route")[0] for record in caplog.records] == [
        "PathRule('/three/a/z', 'logins')"
    ]
