"""The same small application in every framework, limited in the same way, and called alike.

Its routes: `/items/{id}` and `/other` answer with the status and the header `X-Tokens` that the request asks for;
`/stream` sends three parts; `/error` raises; `/wait` waits for ever; `/decision` shows the decision on the request;
`/plain` has no limit of its own; `/free` is exempt.
"""

# Django and Flask publish no, or few, types.
# mypy: allow-untyped-decorators

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import django
import httpx2 as httpx
import litestar
import litestar.testing as litestar_testing
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path as url
from fastapi import FastAPI
from flask import Flask
from flask import Response as FlaskResponse
from flask import request as flask_request
from litestar.response import Stream
from multidict import CIMultiDict
from quart import Quart
from quart import Response as QuartResponse
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()

from headgate import AsyncLimiter, Limiter
from headgate.integrations import aiohttp, asgi, fastapi, flask, quart, starlette
from headgate.integrations import django as django_integration
from headgate.integrations import litestar as litestar_integration

PEER = "198.51.100.7"
LIMITED = ("/items/*", "/other", "/stream", "/error", "/wait", "/decision")
PARTS = ("one ", "two ", "three")


class Answer(NamedTuple):
    """What a site answered."""

    status: int
    headers: Mapping[str, str]
    text: str


class Site:
    """A running application."""

    def __init__(
        self,
        get: Callable[[str, Mapping[str, str]], Awaitable[Answer]],
        leave: Callable[[str], Awaitable[None]] | None = None,
        cancel: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._get = get
        self.leave = leave
        """Reads the first part of a stream, and goes."""
        self.cancel = cancel
        """Goes while the application waits; the server cancels the request."""

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._get(path, {name.replace("_", "-"): value for name, value in headers.items()})

    async def statuses(self, count: int, path: str = "/items/1", **headers: str) -> list[int]:
        return [(await self.get(path, **headers)).status for _ in range(count)]


class Setup(NamedTuple):
    """How a site is limited: the limiter, the arguments of `rate_limit`, those of `install`."""

    limiter: Any
    plans: Any
    key: Any
    options: dict[str, Any]
    install: dict[str, Any]

    def decorate(self, rate_limit: Any, view: Any) -> Any:
        return rate_limit(self.plans, key=self.key, **self.options)(view) if self.plans else view


Stack: TypeAlias = Callable[[Setup], AbstractAsyncContextManager[Site]]
waiting: list[asyncio.Event] = []
"""Set when a request waits."""


def field(native: Any, name: str) -> str | None:
    """A header of a framework's own request."""
    if isinstance(native, Mapping) and "headers" in native and "type" in native:
        found = [value.decode() for key, value in native["headers"] if key.decode().lower() == name.lower()]
        return found[0] if found else None
    value: str | None = native.headers.get(name)
    return value


def _asked(headers: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
    return int(headers.get("X-Status", 200)), {"X-Tokens": headers.get("X-Tokens", "0")}


async def _wait() -> None:
    for reached in waiting:
        reached.set()
    await asyncio.Event().wait()


async def _cancel_when_waiting(request: Coroutine[Any, Any, Any]) -> None:
    """Cancels a request that waits in the application."""
    waiting[:] = [asyncio.Event()]
    task = asyncio.create_task(request)
    await asyncio.wait_for(waiting[0].wait(), 20)
    task.cancel()
    await asyncio.wait((task,))


# -- ASGI --------------------------------------------------------------------------------------------------------------


def asgi_site(app: Any) -> Site:
    """An ASGI application, called without a server between."""

    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        transport = httpx.ASGITransport(app, client=(PEER, 4711), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as client:
            answer = await client.get(path, headers=headers)
        return Answer(answer.status_code, answer.headers, answer.text)

    async def leave(path: str) -> None:
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if not gone.is_set():
                asked.set()
                await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if gone.is_set():
                raise OSError("the client has gone")
            if message["type"] == "http.response.body":
                gone.set()

        asked = asyncio.Event()
        with suppress(Exception):
            await app(_scope(path), _request_first(receive), send)

    async def cancel(path: str) -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None: ...

        await _cancel_when_waiting(app(_scope(path), _request_first(receive), send))

    return Site(get, leave, cancel)


def _request_first(then: Callable[[], Awaitable[dict[str, Any]]]) -> Callable[[], Awaitable[dict[str, Any]]]:
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": b"", "more_body": False}
        return await then()

    return receive


def _scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"test"), (b"x-tokens", b"7")],
        "client": (PEER, 4711),
        "server": ("test", 80),
        "state": {},
        "extensions": {},
    }


async def _item(request: Request) -> Response:
    status, headers = _asked(request.headers)
    return PlainTextResponse("hello", status, headers)


async def _stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[str]:
        for part in PARTS:
            yield part

    return StreamingResponse(parts(), headers=_asked(request.headers)[1])


async def _error(request: Request) -> Response:
    raise RuntimeError("a mistake")


async def _waiting(request: Request) -> Response:
    await _wait()
    return PlainTextResponse("never")


async def _decision(request: Request) -> Response:
    return PlainTextResponse(str(getattr(request.state, "rate_limit", None)))


async def _hello(request: Request) -> Response:
    return PlainTextResponse("hello")


ENDPOINTS: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "/items/{id}": _item,
    "/other": _item,
    "/stream": _stream,
    "/error": _error,
    "/wait": _waiting,
    "/decision": _decision,
}


def _unlimited(view: Any) -> Any:
    """Another function, so that a mark on the one does not mark the other."""

    async def free(request: Request) -> Response:
        return await view(request)  # type: ignore[no-any-return]

    return free


@asynccontextmanager
async def starlette_stack(setup: Setup) -> AsyncIterator[Site]:
    routes = [Route(path, setup.decorate(starlette.rate_limit, view)) for path, view in ENDPOINTS.items()]
    app = Starlette(routes=[*routes, Route("/plain", _hello), Route("/free", starlette.exempt(_unlimited(_hello)))])
    starlette.install(app, setup.limiter, **setup.install)
    yield asgi_site(app)


@asynccontextmanager
async def fastapi_stack(setup: Setup) -> AsyncIterator[Site]:
    app = FastAPI()
    for path, view in ENDPOINTS.items():
        app.get(path)(setup.decorate(fastapi.rate_limit, view))
    app.get("/plain")(_hello)
    app.get("/free")(fastapi.exempt(_unlimited(_hello)))
    fastapi.install(app, setup.limiter, **setup.install)
    yield asgi_site(app)


@asynccontextmanager
async def asgi_stack(setup: Setup) -> AsyncIterator[Site]:
    routes = [Route(path, view) for path, view in ENDPOINTS.items()]
    app = Starlette(routes=[*routes, Route("/plain", _hello), Route("/free", _hello)])
    rules = [asgi.PathRule(path, setup.plans, key=setup.key, **setup.options) for path in LIMITED]
    yield asgi_site(asgi.RateLimitMiddleware(app, setup.limiter, rules, **setup.install))


# -- Flask -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def flask_stack(setup: Setup) -> AsyncIterator[Site]:
    app = Flask(__name__)

    def item(id: int = 0) -> FlaskResponse:
        status, headers = _asked(dict(flask_request.headers))
        return FlaskResponse("hello", status, headers)

    def stream() -> FlaskResponse:
        return FlaskResponse(iter(PARTS), headers=_asked(dict(flask_request.headers))[1])

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
        status, headers = _asked(request.headers)
        return HttpResponse("hello", status=status, headers=headers)

    def stream(request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(iter(PARTS), headers=_asked(request.headers)[1])

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

        return StreamingHttpResponse(parts(), headers=_asked(request.headers)[1])

    async def wait(request: HttpRequest) -> HttpResponse:
        await _wait()
        return HttpResponse("never")

    def made(view: Any) -> Any:
        if not is_async or asyncio.iscoroutinefunction(view):
            return view

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
        "defaults": "HEADGATE_DEFAULTS",
        "legacy_headers": "HEADGATE_LEGACY_HEADERS",
        "on_denied": "HEADGATE_ON_DENIED",
    }
    with override_settings(
        ROOT_URLCONF=__name__,
        HEADGATE_LIMITER=setup.limiter,
        MIDDLEWARE=["headgate.integrations.django.RateLimitMiddleware"],
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
        await _cancel_when_waiting(AsyncClient().get(path))

    async with _django_site(setup, is_async=True):
        yield Site(get, leave, cancel)


# -- Quart -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def quart_stack(setup: Setup) -> AsyncIterator[Site]:
    app = Quart(__name__)

    async def item(id: int = 0) -> QuartResponse:
        status, headers = _asked(dict(quart_request.headers))
        return QuartResponse("hello", status, headers)

    async def stream() -> QuartResponse:
        async def parts() -> AsyncIterator[str]:
            for part in PARTS:
                yield part

        return QuartResponse(parts(), headers=_asked(dict(quart_request.headers))[1])

    async def error() -> QuartResponse:
        raise RuntimeError("a mistake")

    async def wait() -> str:
        await _wait()
        return "never"

    async def decision() -> str:
        return str(getattr(quart_request, "rate_limit", None))

    async def hello() -> str:
        return "hello"

    @quart.exempt
    async def free() -> str:
        return "hello"

    views: dict[str, Any] = {
        "/items/<int:id>": item,
        "/other": item,
        "/stream": stream,
        "/error": error,
        "/wait": wait,
        "/decision": decision,
    }
    for path, view in views.items():
        app.add_url_rule(path, path.strip("/").replace("/", "-"), setup.decorate(quart.rate_limit, view))
    app.add_url_rule("/plain", "plain", hello)
    app.add_url_rule("/free", "free", free)
    quart.install(app, setup.limiter, **setup.install)

    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        answer = await app.test_client().get(path, headers=dict(headers))
        return Answer(answer.status_code, CIMultiDict(answer.headers), await answer.get_data(as_text=True))

    called = asgi_site(app)
    yield Site(get, called.leave, called.cancel)


# -- Litestar ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def litestar_stack(setup: Setup) -> AsyncIterator[Site]:
    async def item(request: litestar.Request[Any, Any, Any]) -> litestar.Response[str]:
        status, headers = _asked(request.headers)
        return litestar.Response("hello", status_code=status, headers=headers, media_type="text/plain")

    async def other(request: litestar.Request[Any, Any, Any]) -> litestar.Response[str]:
        return await item(request)

    async def stream(request: litestar.Request[Any, Any, Any]) -> Stream:
        async def parts() -> AsyncIterator[str]:
            for part in PARTS:
                yield part

        return Stream(parts(), headers=_asked(request.headers)[1])

    async def error() -> str:
        raise RuntimeError("a mistake")

    async def wait() -> str:
        await _wait()
        return "never"

    async def decision(request: litestar.Request[Any, Any, Any]) -> str:
        return str(getattr(request.state, "rate_limit", None))

    async def hello() -> str:
        return "hello"

    @litestar_integration.exempt
    async def free() -> str:
        return "hello"

    views: dict[str, Any] = {
        "/items/{id:int}": item,
        "/other": other,
        "/stream": stream,
        "/error": error,
        "/wait": wait,
        "/decision": decision,
    }
    routes = [
        litestar.get(path, media_type="text/plain")(setup.decorate(litestar_integration.rate_limit, view))
        for path, view in views.items()
    ]
    app = litestar.Litestar(
        [*routes, litestar.get("/plain")(hello), litestar.get("/free")(free)],
        plugins=[litestar_integration.RateLimitPlugin(setup.limiter, **setup.install)],
        openapi_config=None,
        logging_config=None,
    )

    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        answer = await client.get(path, headers=dict(headers))
        return Answer(answer.status_code, answer.headers, answer.text)

    called = asgi_site(app)
    async with litestar_testing.AsyncTestClient(app, raise_server_exceptions=False) as client:
        yield Site(get, called.leave, called.cancel)


# -- aiohttp -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def aiohttp_stack(setup: Setup) -> AsyncIterator[Site]:
    ended = asyncio.Event()

    async def item(request: web.Request) -> web.Response:
        status, headers = _asked(request.headers)
        return web.Response(text="hello", status=status, headers=headers)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_asked(request.headers)[1])
        try:
            await response.prepare(request)
            for part in PARTS:
                await response.write(part.encode())
                if "X-Leave" in request.headers:
                    await asyncio.Event().wait()
            return response
        finally:
            ended.set()

    async def error(request: web.Request) -> web.Response:
        raise RuntimeError("a mistake")

    async def wait(request: web.Request) -> web.Response:
        try:
            await _wait()
        finally:
            ended.set()
        return web.Response(text="never")

    async def decision(request: web.Request) -> web.Response:
        return web.Response(text=str(request.get(aiohttp.DECISION)))

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    @aiohttp.exempt
    async def free(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    views: dict[str, Any] = {
        r"/items/{id:\d+}": item,
        "/other": item,
        "/stream": stream,
        "/error": error,
        "/wait": wait,
        "/decision": decision,
    }
    for path, view in views.items():
        app.router.add_get(path, setup.decorate(aiohttp.rate_limit, view))
    app.router.add_get("/plain", hello)
    app.router.add_get("/free", free)
    aiohttp.install(app, setup.limiter, **setup.install)
    client = TestClient(TestServer(app))  # which cancels the handlers of clients who leave
    await client.start_server()

    async def get(path: str, headers: Mapping[str, str]) -> Answer:
        async with client.get(path, headers=headers) as answer:
            return Answer(answer.status, answer.headers, await answer.text())

    async def leave(path: str) -> None:
        answer = await client.get(path, headers={"X-Tokens": "7", "X-Leave": "yes"})
        await answer.content.readany()
        answer.close()
        await asyncio.wait_for(ended.wait(), 20)
        await asyncio.sleep(0)

    async def cancel(path: str) -> None:
        await _cancel_when_waiting(client.get(path))
        await asyncio.wait_for(ended.wait(), 20)
        await asyncio.sleep(0)

    yield Site(get, leave, cancel)
    await client.close()


STACKS: dict[str, tuple[Stack, Sequence[Any]]] = {
    "starlette": (starlette_stack, (Limiter, AsyncLimiter)),
    "fastapi": (fastapi_stack, (Limiter, AsyncLimiter)),
    "asgi": (asgi_stack, (Limiter, AsyncLimiter)),
    "flask": (flask_stack, (Limiter,)),
    "django": (django_stack, (Limiter,)),
    "django_async": (django_async_stack, (Limiter, AsyncLimiter)),
    "quart": (quart_stack, (Limiter, AsyncLimiter)),
    "litestar": (litestar_stack, (Limiter, AsyncLimiter)),
    "aiohttp": (aiohttp_stack, (Limiter, AsyncLimiter)),
}
"""Every framework, and the limiters it takes."""


def each_stack() -> Iterator[tuple[str, Any]]:
    """Names of stacks, each with every kind of limiter."""
    for name, (_, kinds) in STACKS.items():
        for kind in kinds:
            yield name, kind
