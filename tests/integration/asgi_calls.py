"""Calls of an ASGI application without a server between."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx


def talk_to(app: Any, peer: str = "198.51.100.7") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30)


async def statuses(client: httpx.AsyncClient, count: int, path: str = "/", **options: Any) -> list[int]:
    return [(await client.get(path, **options)).status_code for _ in range(count)]


async def connect(app: Any, path: str, **scope: Any) -> list[dict[str, Any]]:
    """What an app sends to a WebSocket that connects."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    basic = {"type": "websocket", "path": path, "headers": [], "query_string": b"", "client": ("198.51.100.7", 1)}
    await app({**basic, **scope}, receive, send)
    return sent
