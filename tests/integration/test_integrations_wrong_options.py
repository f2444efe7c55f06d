"""Options, rules and installations that can't be used: refused by the name of what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI
from flask import Flask
from quart import Quart
from starlette.applications import Starlette

from paceline import AsyncLimiter, ConfigurationError, FixedWindow, Limiter, Plan
from paceline.integrations import aiohttp, flask, quart, starlette
from paceline.integrations.asgi import PathRule, RateLimitMiddleware
from paceline.integrations.fastapi import Limit, everyone, install, rate_limit

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H"))]
ALL = everyone("all")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"exempt": True}, "exempt"),
        ({"on_denied": "no"}, "on_denied"),
        ({"charge_when": 1}, "charge_when"),
        ({"cost_of_response": 5}, "cost_of_response"),
        ({"block": None}, "block"),
        ({"legacy_headers": "yes"}, "legacy_headers"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: Any, field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: "):
        rate_limit("small", key=ALL, **options)


def test_defaults_are_limits() -> None:
    with pytest.raises(ConfigurationError, match=r"^defaults: 'small' is no Limit"):
        install(FastAPI(), AsyncLimiter(plans=PLANS), defaults=["small"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="no plan 'smal'"):
        install(FastAPI(), AsyncLimiter(plans=PLANS), defaults=[Limit("smal", key=ALL)])


def test_a_list_is_a_list() -> None:
    one: Any = Limit("small", key=ALL)
    with pytest.raises(ConfigurationError, match=r"^defaults: Limit.* is no list"):
        install(FastAPI(), AsyncLimiter(plans=PLANS), defaults=one)
    for rules in ("/api/*", ["/api/*"], [one], PathRule("/api/*", "small", key=ALL), None):
        with pytest.raises(ConfigurationError, match=r"^rules: "):
            RateLimitMiddleware(FastAPI(), AsyncLimiter(plans=PLANS), rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("methods", [[], [""], [None], "GET", b"GET", 5])
def test_rules_that_would_never_hold_are_refused(methods: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^methods: "):
        PathRule("/api/*", "small", key=ALL, methods=methods)


def test_a_pattern_is_a_text() -> None:
    with pytest.raises(ConfigurationError, match=r"^pattern: "):
        PathRule(["/api/*"], "small", key=ALL)  # type: ignore[arg-type]


def test_on_denied_of_an_application_is_a_function() -> None:
    with pytest.raises(ConfigurationError, match=r"^on_denied: 'sorry' is no function"):
        install(FastAPI(), AsyncLimiter(plans=PLANS), on_denied="sorry")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("application", "installed"),
    [
        (lambda: Flask(__name__), flask.install),
        (lambda: Quart(__name__), quart.install),
        (web.Application, aiohttp.install),
        (Starlette, starlette.install),
    ],
)
def test_a_second_install_would_charge_twice(application: Any, installed: Any) -> None:
    app, limiter = application(), Limiter(plans=PLANS)
    installed(app, limiter)
    with pytest.raises(ConfigurationError, match="install was called before"):
        installed(app, limiter)


def test_an_async_function_in_an_application_that_is_not() -> None:
    async def tier(request: Any) -> str:
        await asyncio.sleep(0)
        return "small"

    app = Flask(__name__)
    app.testing = True
    flask.install(app, Limiter(plans=PLANS))
    app.get("/")(flask.rate_limit(tier, key=ALL)(lambda: "hello"))
    with pytest.raises(ConfigurationError, match="async"):
        app.test_client().get("/")
