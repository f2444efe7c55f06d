"""One small web application in each framework paceline integrates with, called the same way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import django
import httpx2 as httpx
import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from fastapi import FastAPI
from flask import Flask
from werkzeug.datastructures import Headers

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()

from paceline import AsyncLimiter, Limiter
from paceline.integrations import asgi, fastapi, flask
from paceline.integrations import django as django_integration
from paceline.limits.keys import Key

__all__ = ["BLOCKING", "ON_A_LOOP", "SITES", "Answer", "Site", "django_integration", "override_settings"]

urlpatterns: list[Any] = []

PEER = "198.51.100.7"

Routes: TypeAlias = Mapping[str, tuple[list[str], Key]]
"""Paths, and the plans and the key each is limited by."""


class Answer(NamedTuple):
    """What a site answered."""

    status: int
    headers: Mapping[str, str] | Headers


Get: TypeAlias = Callable[..., Awaitable[Answer]]
"""`await get(path, headers={}, peer="…")`"""


def _asgi_get(app: Any) -> Get:
    async def get(path: str, headers: Mapping[str, str] | None = None, peer: str = PEER) -> Answer:
        transport = httpx.ASGITransport(app, client=(peer, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as client:
            answer = await client.get(path, headers=headers)
        return Answer(answer.status_code, answer.headers)

    return get


@contextmanager
def _fastapi(limiter: Limiter | AsyncLimiter, routes: Routes) -> Iterator[Get]:
    app = FastAPI()
    fastapi.install(app, limiter)

    async def hello() -> str:
        return "hello"

    for path, (plans, key) in routes.items():
        app.get(path)(fastapi.rate_limit(plans, key=key)(hello))
    yield _asgi_get(app)


@contextmanager
def _asgi(limiter: Limiter | AsyncLimiter, routes: Routes) -> Iterator[Get]:
    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    rules = [asgi.PathRule(path, plans, key=key) for path, (plans, key) in routes.items()]
    yield _asgi_get(asgi.RateLimitMiddleware(hello, limiter, rules))


@contextmanager
def _flask(limiter: Limiter, routes: Routes) -> Iterator[Get]:
    app = Flask(__name__)
    app.testing = True
    flask.install(app, limiter)
    for path, (plans, key) in routes.items():
        app.add_url_rule(path, path.strip("/"), flask.rate_limit(plans, key=key)(lambda: "hello"))
    client = app.test_client()

    async def get(path: str, headers: Mapping[str, str] | None = None, peer: str = PEER) -> Answer:
        answer = client.get(path, headers=headers, environ_overrides={"REMOTE_ADDR": peer})
        return Answer(answer.status_code, answer.headers)

    yield get


@contextmanager
def _installed_in_django(limiter: Limiter | AsyncLimiter) -> Iterator[None]:
    django_integration._request_limiter.cache_clear()
    with override_settings(PACELINE_LIMITER=limiter):
        yield
    django_integration._request_limiter.cache_clear()


@contextmanager
def _django(limiter: Limiter, routes: Routes) -> Iterator[Get]:
    def hello(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    views = {path: django_integration.rate_limit(plans, key=key)(hello) for path, (plans, key) in routes.items()}

    async def get(path: str, headers: Mapping[str, str] | None = None, peer: str = PEER) -> Answer:
        answer = views[path](RequestFactory().get(path, headers=headers, REMOTE_ADDR=peer))
        return Answer(answer.status_code, answer.headers)

    with _installed_in_django(limiter):
        yield get


@contextmanager
def _django_async(limiter: Limiter | AsyncLimiter, routes: Routes) -> Iterator[Get]:
    async def hello(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    views = {path: django_integration.rate_limit(plans, key=key)(hello) for path, (plans, key) in routes.items()}

    async def get(path: str, headers: Mapping[str, str] | None = None, peer: str = PEER) -> Answer:
        request = AsyncRequestFactory().get(path, headers=headers)
        request.META["REMOTE_ADDR"] = peer
        answer = await views[path](request)
        return Answer(answer.status_code, answer.headers)

    with _installed_in_django(limiter):
        yield get


ON_A_LOOP = {"fastapi": _fastapi, "asgi": _asgi, "django_async": _django_async}
BLOCKING = {"flask": _flask, "django": _django}

Site: TypeAlias = Callable[[Any, Routes], Any]
"""A site with these routes, limited by a limiter, as a context."""

SITES = [
    *(pytest.param(Limiter, site, id=f"{name}-sync") for name, site in {**ON_A_LOOP, **BLOCKING}.items()),
    *(pytest.param(AsyncLimiter, site, id=f"{name}-async") for name, site in ON_A_LOOP.items()),
]
"""Every framework with every limiter it takes."""
