"""The application of `stacks` in Flask and Django."""

# Django and Flask publish no, or few, types.
# mypy: allow-untyped-decorators

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path as url
from flask import Flask
from flask import Response as FlaskResponse
from flask import request as flask_request

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()


from paceline.integrations import django as django_integration
from paceline.integrations import flask
from tests.integration.stack_sites import (
    PARTS,
    PEER,
    Answer,
    Setup,
    Site,
    answer_for,
    cancel_when_waiting,
    wait_for_ever,
)

# -- Flask -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def flask_stack(setup: Setup) -> AsyncIterator[Site]:
    app = Flask(__name__)

    def item(id: int = 0) -> FlaskResponse:
        status, headers = answer_for(dict(flask_request.headers))
        return FlaskResponse("hello", status, headers)

    def stream() -> FlaskResponse:
        return FlaskResponse(iter(PARTS), headers=answer_for(dict(flask_request.headers))[1])

    def error() -> FlaskResponse:
        raise RuntimeError("a mistake")

    def decision() -> str:
        return str(getattr(flask_request, "rate_limit", None))

    def hello() -> str:
        return "hello"

    views = {"/items/<int:id>": item, "/other": item, "/stream": stream, "/error": error, "/decision": decision}
    for path, view in views.items():
        app.add_url_rule(path, path.strip("/"), setup.decorate(flask.rate_limit, view))
    app.add_url_rule("/plain", "plain", hello)
    app.add_url_rule("/free", "free", flask.exempt(lambda: "hello"))
    flask.install(app, setup.limiter, **setup.install)

    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        def call() -> Answer:
            with app.test_client() as client:
                answer = client.get(path, headers=dict(headers), environ_overrides={"REMOTE_ADDR": PEER})
                return Answer(answer.status_code, dict(answer.headers), answer.text)

        return await asyncio.to_thread(call)

    async def leave(path: str) -> None:
        answer = app.test_client().get(path, headers={"X-Tokens": "7"}, environ_overrides={"REMOTE_ADDR": PEER})
        next(answer.iter_encoded())
        answer.close()

    yield Site(get, leave)


# -- Django ------------------------------------------------------------------------------------------------------------

urlpatterns: list[Any] = []


def _django_views(setup: Setup, is_async: bool) -> list[Any]:
    def item(request: HttpRequest, id: int = 0) -> HttpResponse:
        status, headers = answer_for(request.headers)
        return HttpResponse("hello", status=status, headers=headers)

    def stream(request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(iter(PARTS), headers=answer_for(request.headers)[1])

    def error(request: HttpRequest) -> HttpResponse:
        raise RuntimeError("a mistake")

    def decision(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(getattr(request, "rate_limit", None)))

    def hello(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    def free(request: HttpRequest) -> HttpResponse:
        return hello(request)

    async def stream_async(request: HttpRequest) -> HttpResponse:
        async def parts() -> AsyncIterator[str]:
            for part in PARTS:
                yield part

        return StreamingHttpResponse(parts(), headers=answer_for(request.headers)[1])

    async def wait(request: HttpRequest) -> HttpResponse:
        await wait_for_ever()
        return HttpResponse("never")

    def made(view: Any) -> Any:
        if not is_async or asyncio.iscoroutinefunction(view):
            return view

        @wraps(view)  # its name, which its limits count under
        async def view_async(request: HttpRequest, **arguments: Any) -> HttpResponse:
            return view(request, **arguments)

        return view_async

    views = {
        "items/<int:id>": item,
        "other": item,
        "stream": stream_async if is_async else stream,
        "error": error,
        "decision": decision,
        **({"wait": wait} if is_async else {}),
    }
    limited = [url(path, setup.decorate(django_integration.rate_limit, made(view))) for path, view in views.items()]
    return [
        *limited,
        url("plain", made(hello)),
        url("free", django_integration.exempt(made(free))),
    ]


@asynccontextmanager
async def _django_site(setup: Setup, is_async: bool) -> AsyncIterator[None]:
    urlpatterns[:] = _django_views(setup, is_async)
    django.urls.clear_url_caches()
    django_integration._request_limiter.cache_clear()
    names = {
        "defaults": "PACELINE_DEFAULTS",
        "legacy_headers": "PACELINE_LEGACY_HEADERS",
        "on_denied": "PACELINE_ON_DENIED",
    }
    with override_settings(
        ROOT_URLCONF=__name__,
        PACELINE_LIMITER=setup.limiter,
        MIDDLEWARE=["paceline.integrations.django.RateLimitMiddleware"],
        **{names[name]: value for name, value in setup.install.items()},
    ):
        yield
    django_integration._request_limiter.cache_clear()


@asynccontextmanager
async def django_stack(setup: Setup) -> AsyncIterator[Site]:
    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        def call() -> Answer:
            answer = Client(raise_request_exception=False, REMOTE_ADDR=PEER).get(path, headers=headers)
            return Answer(answer.status_code, answer.headers, b"".join(answer).decode())

        return await asyncio.to_thread(call)

    async def leave(path: str) -> None:
        def call() -> None:
            answer = Client(REMOTE_ADDR=PEER).get(path, headers={"X-Tokens": "7"})
            next(iter(answer.streaming_content))
            answer.close()

        await asyncio.to_thread(call)

    async with _django_site(setup, is_async=False):
        yield Site(get, leave)


@asynccontextmanager
async def django_async_stack(setup: Setup) -> AsyncIterator[Site]:
    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        client = AsyncClient(raise_request_exception=False)
        answer = await client.get(path, headers=headers)
        if not answer.streaming:
            return Answer(answer.status_code, answer.headers, answer.content.decode())
        text = "".join([part.decode() async for part in answer.streaming_content])
        return Answer(answer.status_code, answer.headers, text)

    async def leave(path: str) -> None:
        answer = await AsyncClient().get(path, headers={"X-Tokens": "7"})
        await anext(aiter(answer.streaming_content))
        answer.close()
        for _ in range(5):  # it is settled in the event loop
            await asyncio.sleep(0)

    async def cancel(path: str) -> None:
        await cancel_when_waiting(AsyncClient().get(path))

    async with _django_site(setup, is_async=True):
        yield Site(get, leave, cancel)
