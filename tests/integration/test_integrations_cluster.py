"""Limits by keys that never share a slot of a Redis Cluster are refused when they are configured, where certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan
from paceline.errors import ConfigurationError
from paceline.integrations import asgi, fastapi, flask
from paceline.integrations.request_limiter import PathRule
from paceline.limits.keys import Key, client_address, composite, everyone, header
from tests.integration.sites import django_integration, override_settings
from tests.integration.test_integrations_unknown_plans import started

PLANS = [Plan("gold", FixedWindow(1, "PT1H")), Plan("daily", FixedWindow(5, "P1D"))]
CLUSTER = "redis+cluster://127.0.0.1:1"  # nothing listens there: a refusal comes before anything is sent

API_KEY = header("X-API-Key", prefix="key:")
ADDRESS = client_address(prefix="address:")
APART: list[tuple[Key, Key]] = [
    (everyone("search"), everyone("all")),
    (API_KEY, ADDRESS),
    (API_KEY, everyone("all")),
    (header("X-API-Key", prefix="key:", default="anonymous"), ADDRESS),
    (everyone("{acme}:search"), everyone("{other}:search")),
]
UNCERTAIN: list[tuple[Key, Key]] = [
    (everyone("all"), everyone("all")),
    (everyone("{acme}:search"), everyone("{acme}:all")),
    (header("X-API-Key", prefix="{acme}:key:"), client_address(prefix="{acme}:address:")),
    (header("X-API-Key"), ADDRESS),
    (header("X-API-Key", prefix="key:", skip=True), ADDRESS),
    (header("X-API-Key", prefix="key:", default="address:none"), ADDRESS),
    (composite(API_KEY, ADDRESS), ADDRESS),
    (asgi.path(prefix="a"), asgi.path(prefix="ab")),
]


async def application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


def django_middleware(limiter: Any, rules: list[PathRule]) -> None:
    django_integration._request_limiter.cache_clear()
    try:
        with override_settings(PACELINE_LIMITER=limiter, PACELINE_RULES=rules):
            django_integration.RateLimitMiddleware(lambda request: None)
    finally:
        django_integration._request_limiter.cache_clear()


RULES: dict[str, Callable[[Any, list[PathRule]], object]] = {
    "asgi": lambda limiter, rules: asgi.RateLimitMiddleware(application, limiter, rules),
    "flask": lambda limiter, rules: flask.install(Flask(__name__), limiter, rules),
    "django": django_middleware,
}


def rules(first: Key, second: Key, *patterns: str) -> list[PathRule]:
    return [PathRule(patterns[0], "gold", key=first), PathRule(patterns[1], "daily", key=second)]


@pytest.mark.parametrize("configure", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("first", "second"), APART)
@pytest.mark.parametrize(
    "patterns",
    [
        ("/a", "/a"),
        ("/api/login", "/api/*"),
        ("/api/*", "/api/login"),
        ("/a/*", "*"),
        ("/api//v?/*", "/api/*"),
        ("/a/", "/a"),
    ],
)
def test_rules_that_always_meet_are_refused(
    configure: Callable[[Any, list[PathRule]], object], first: Key, second: Key, patterns: tuple[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="a Redis Cluster can't decide on"):
        configure(Limiter(CLUSTER, plans=PLANS), rules(first, second, *patterns))
    configure(Limiter("redis://127.0.0.1:1", plans=PLANS), rules(first, second, *patterns))


@pytest.mark.parametrize("configure", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("first", "second"), UNCERTAIN)
def test_rules_whose_keys_may_share_a_slot_are_not(
    configure: Callable[[Any, list[PathRule]], object], first: Key, second: Key
) -> None:
    configure(Limiter(CLUSTER, plans=PLANS), rules(first, second, "/a", "/a"))


@pytest.mark.parametrize("patterns", [("/a", "/b"), ("/a/*", "/b/*"), ("/a*", "/*b"), ("/a?*", "/a/*")])
def test_rules_that_need_not_meet_are_not(patterns: tuple[str, str]) -> None:
    asgi.RateLimitMiddleware(application, AsyncLimiter(CLUSTER, plans=PLANS), rules(*APART[0], *patterns))


def test_rules_for_different_methods_are_not() -> None:
    first = PathRule("/a", "gold", key=API_KEY, methods=["POST"])
    second = PathRule("/a", "daily", key=ADDRESS, methods=["GET"])
    asgi.RateLimitMiddleware(application, AsyncLimiter(CLUSTER, plans=PLANS), [first, second])
    every = PathRule("/a", "daily", key=ADDRESS)
    with pytest.raises(ConfigurationError, match=r"on 'key:…' and 'address:…' at once"):
        asgi.RateLimitMiddleware(application, AsyncLimiter(CLUSTER, plans=PLANS), [first, every])


async def hello() -> str:
    return "hello"


def stacked(first: Key, second: Key) -> FastAPI:
    app = FastAPI()
    fastapi.install(app, AsyncLimiter(CLUSTER, plans=PLANS))
    app.get("/")(fastapi.rate_limit("gold", key=first)(fastapi.rate_limit("daily", key=second)(hello)))
    return app


@pytest.mark.parametrize(("first", "second"), APART)
async def test_fastapi_does_not_start_with_decorators_that_never_share_a_slot(first: Key, second: Key) -> None:
    failed, raised = await started(stacked(first, second))
    assert failed["type"] == "lifespan.startup.failed"
    assert "a Redis Cluster can't decide on" in failed["message"]
    assert raised == {"raised": failed["message"]}


@pytest.mark.parametrize(("first", "second"), UNCERTAIN)
async def test_fastapi_starts_with_decorators_that_may_share_a_slot(first: Key, second: Key) -> None:
    assert (await started(stacked(first, second)))[0] == {"type": "lifespan.startup.complete"}


async def test_a_dependency_decides_for_itself() -> None:
    app = FastAPI()
    fastapi.install(app, AsyncLimiter(CLUSTER, plans=PLANS))
    limited = Depends(fastapi.limited("gold", key=API_KEY))
    app.get("/", dependencies=[limited])(fastapi.rate_limit("daily", key=ADDRESS)(hello))
    assert (await started(app))[0] == {"type": "lifespan.startup.complete"}
