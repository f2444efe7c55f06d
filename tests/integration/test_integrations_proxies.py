"""Whom an address limit counts behind a proxy, on a real uvicorn with its own defaults: it trusts `X-Forwarded-For`
from the loopback interface, and replaces the peer before any application sees the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest
import uvicorn
from fastapi import FastAPI

from paceline import Limiter
from paceline.integrations import asgi, fastapi
from paceline.limits.keys import Key, client_address
from paceline.testing import eventually


def decorated(key: Key) -> Any:
    """The first program of the README."""
    app = FastAPI()
    fastapi.install(app, Limiter("memory://"))

    @app.get("/")
    @fastapi.rate_limit("5/minute", key=key)
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def by_rules(key: Key) -> Any:
    app = FastAPI()
    app.get("/")(lambda: "hello")
    return asgi.RateLimitMiddleware(app, Limiter("memory://"), [asgi.PathRule("/", "5/minute", key=key)])


def with_defaults(key: Key) -> Any:
    app = FastAPI()
    fastapi.install(app, Limiter("memory://"), defaults=[fastapi.Limit(["5/minute", "9/day"], key=key)])
    app.get("/")(lambda: "hello")
    return app


@asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, **options))
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        server.should_exit = True
        await running


async def statuses(client: httpx.AsyncClient, *forwarded: str) -> list[int]:
    return [(await client.get("/", headers={"X-Forwarded-For": text})).status_code for text in forwarded]


FORGED = [f"203.0.113.{number}" for number in range(4)]
FORGED += [f"203.0.113.{number}:{4000 + number}" for number in range(4, 8)]
FORGED += [f"[2001:db8:{number}::1]:443, 127.0.0.1" for number in range(4)]


@pytest.mark.parametrize("program", [decorated, by_rules, with_defaults])
async def test_without_a_named_proxy_nobody_chooses_an_address(program: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with served(program(client_address())) as client:
        with caplog.at_level(logging.WARNING, "paceline"):
            assert await statuses(client, *FORGED) == [200] * 5 + [429] * 7
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("paceline")]
    assert "client_address(trusted_proxies=" in warning


@pytest.mark.parametrize("proxy_headers", [True, False])
@pytest.mark.parametrize("program", [decorated, by_rules, with_defaults])
async def test_behind_a_named_proxy_each_client_counts(program: Any, proxy_headers: bool) -> None:
    key = client_address(trusted_proxies=["127.0.0.0/8"])
    async with served(program(key), proxy_headers=proxy_headers) as client:
        assert await statuses(client, *["203.0.113.1"] * 6) == [200] * 5 + [429]
        assert await statuses(client, "203.0.113.2") == [200]
        # What a client wrote stands before what the proxy appended.
        assert await statuses(client, "198.51.100.9, 203.0.113.1", "203.0.113.1, 198.51.100.9") == [429, 200]


async def test_without_a_proxy_the_peer_counts() -> None:
    async with served(decorated(client_address())) as client:
        assert [(await client.get("/")).status_code for _ in range(6)] == [200] * 5 + [429]
