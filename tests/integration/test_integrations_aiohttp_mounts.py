"""Rules by path of aiohttp's applications, in others or under a domain."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from paceline import Limiter
from paceline.integrations import aiohttp as aiohttp_integration
from paceline.integrations.asgi import PathRule
from tests.integration.path_rules import PLANS, rule, warnings


def aiohttp_app(*rules: PathRule) -> web.Application:
    async def greeting(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    for path in ("", "/login", "/users/{id}", "/café", "/pages/{name:.+}"):
        app.router.add_get(path, greeting)
    app.router.add_static("/files", ".")
    if rules:
        aiohttp_integration.install(app, Limiter(plans=PLANS), rules)
    return app


def mounted(*prefixes: str, app: web.Application) -> web.Application:
    """Applications around `app`: the last of the prefixes is the outermost."""
    for prefix in prefixes:
        parent = web.Application()
        parent.add_subapp(prefix, app)
        app = parent
    return app


async def aiohttp_statuses(app: web.Application, *paths: str, host: str = "test") -> list[int]:
    async with TestClient(TestServer(app)) as client:
        urls = [URL(path, encoded=True) for path in paths]
        return [(await client.get(url, headers={"Host": host})).status for url in urls]


async def test_an_aiohttp_rule_holds_in_a_mounted_application(caplog: pytest.LogCaptureFixture) -> None:
    shop = mounted("/shop", app=aiohttp_app(rule(), rule("/users/*"), rule("/café")))
    assert await aiohttp_statuses(shop, "/shop/login", "/shop/login") == [200, 429]
    nested = mounted("/shop", "/v1", "/api", app=aiohttp_app(rule()))
    assert await aiohttp_statuses(nested, "/api/v1/shop/login", "/api/v1/shop/login") == [200, 429]
    assert warnings(caplog) == []


async def test_an_aiohttp_rule_with_the_prefix_holds_in_the_application_around_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parent = aiohttp_app(rule("/shop/login"))
    parent.add_subapp("/shop", aiohttp_app())
    assert await aiohttp_statuses(parent, "/shop/login", "/login", "/shop/login") == [200, 200, 429]
    middle = aiohttp_app(rule("/shop/login"))
    middle.add_subapp("/shop", aiohttp_app())
    paths = ("/v1/shop/login", "/v1/login", "/v1/shop/login")
    assert await aiohttp_statuses(mounted("/v1", app=middle), *paths) == [200, 200, 429]
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("prefix", "paths"),
    [
        ("/v1", ["/%761/login", "/v1/%6Cogin"]),
        ("/a%2Fb", ["/a%2Fb/login", "/a%2fb/login"]),
        ("/a%25b", ["/a%25b/login", "/%61%25b/login"]),
    ],
)
async def test_encoding_passes_no_rule_of_a_mounted_aiohttp_application(
    prefix: str, paths: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert await aiohttp_statuses(mounted(prefix, app=aiohttp_app(rule())), *paths) == [200, 429]
    assert warnings(caplog) == []


async def test_the_root_of_a_mounted_aiohttp_application_is_a_path() -> None:
    shop = mounted("/shop", app=aiohttp_app(rule("/")))
    assert await aiohttp_statuses(shop, "/shop", "/shop") == [200, 429]


async def test_an_aiohttp_rule_holds_in_the_application_of_a_domain() -> None:
    parent = web.Application()
    parent.add_domain("shop.example", aiohttp_app(rule()))
    assert await aiohttp_statuses(parent, "/login", "/login", host="shop.example") == [200, 429]
    parent = web.Application()
    parent.add_domain("api.example", mounted("/v1", app=aiohttp_app(rule())))
    assert await aiohttp_statuses(parent, "/v1/login", "/v1/login", host="api.example") == [200, 429]


@pytest.mark.parametrize("prefixes", [(), ("/shop",), ("/shop", "/a%2Fb")])
async def test_an_aiohttp_application_names_a_rule_that_matches_no_route(
    prefixes: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    served = ["/login", "/users/7", "/café", "/pages/a/b", "/files/*"]
    unmatched = ["/shop/login", "/users/7/8", "/lgin"]
    app = mounted(*prefixes, app=aiohttp_app(*map(rule, served + unmatched)))
    assert await aiohttp_statuses(app, "".join(reversed(prefixes)) + "/login") == [200]
    assert [message.split(",")[0] for message in warnings(caplog)] == [f"PathRule({path!r}" for path in unmatched]
