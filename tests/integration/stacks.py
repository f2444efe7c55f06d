"""The same small application in every framework, limited in the same way, and called the same way.

Its routes: `/items/{id}` and `/other` answer with the status and the header `X-Tokens` that the request asks for;
`/stream` sends three parts; `/error` raises; `/wait` waits for ever; `/decision` shows the decision on the request;
`/plain` has no limit of its own; `/free` is exempt.
"""


# Django and Flask publish no, or few, types.
# mypy: allow-untyped-decorators

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import litestar
import litestar.testing as litestar_testing
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import FastAPI
from litestar.response import Stream
from multidict import CIMultiDict
from quart import Quart
from quart import Response as QuartResponse
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from paceline import AsyncLimiter, Limiter
from paceline.integrations import aiohttp, asgi, fastapi, quart, starlette
from paceline.integrations import litestar as litestar_integration
from tests.integration.stack_sites import (
    LIMITED,
    PARTS,
    Answer,
    Setup,
    Site,
    Stack,
    answer_for,
    asgi_site,
    cancel_when_waiting,
    wait_for_ever,
)
from tests.integration.stacks_wsgi import django_async_stack, django_stack, flask_stack


async def _item(request: Request) -> Response:
    status, headers = answer_for(request.headers)
    return PlainTextResponse("hello", status, headers)


async def _stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[str]:
        for part in PARTS:
            yield part

    return StreamingResponse(parts(), headers=answer_for(request.headers)[1])


async def _error(request: Request) -> Response:
    raise RuntimeError("a mistake")


async def _waiting(request: Request) -> Response:
    await wait_for_ever()
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


# -- Quart -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def quart_stack(setup: Setup) -> AsyncIterator[Site]:
    app = Quart(__name__)

    async def item(id: int = 0) -> QuartResponse:
        status, headers = answer_for(dict(quart_request.headers))
        return QuartResponse("hello", status, headers)

    async def stream() -> QuartResponse:
        async def parts() -> AsyncIterator[str]:
            for part in PARTS:
                yield part

        return QuartResponse(parts(), headers=answer_for(dict(quart_request.headers))[1])

    async def error() -> QuartResponse:
        raise RuntimeError("a mistake")

    async def wait() -> str:
        await wait_for_ever()
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
        status, headers = answer_for(request.headers)
        return litestar.Response("hello", status_code=status, headers=headers, media_type="text/plain")

    async def other(request: litestar.Request[Any, Any, Any]) -> litestar.Response[str]:
        return await item(request)

    async def stream(request: litestar.Request[Any, Any, Any]) -> Stream:
        async def parts() -> AsyncIterator[str]:
            for part in PARTS:
                yield part

        return Stream(parts(), headers=answer_for(request.headers)[1])

    async def error() -> str:
        raise RuntimeError("a mistake")

    async def wait() -> str:
        await wait_for_ever()
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
        status, headers = answer_for(request.headers)
        return web.Response(text="hello", status=status, headers=headers)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=answer_for(request.headers)[1])
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
            await wait_for_ever()
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
    client = TestClient(TestServer(app))  # which cancels the handlers of clients that disconnect
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
        await cancel_when_waiting(client.get(path))
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
