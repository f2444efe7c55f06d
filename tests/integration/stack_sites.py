"""A small application in some framework, and how tests call it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple, TypeAlias

import httpx2 as httpx

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


def answer_for(headers: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
    """The requested status and headers."""
    return int(headers.get("X-Status", 200)), {"X-Tokens": headers.get("X-Tokens", "0")}


async def wait_for_ever() -> None:
    for reached in waiting:
        reached.set()
    await asyncio.Event().wait()


async def cancel_when_waiting(request: Coroutine[Any, Any, Any]) -> None:
    """Cancels a request that waits in the application."""
    waiting[:] = [asyncio.Event()]
    task = asyncio.create_task(request)
    await asyncio.wait_for(waiting[0].wait(), 20)
    task.cancel()
    await asyncio.wait((task,))


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
                await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if gone.is_set():
                raise OSError("the client has gone")
            if message["type"] == "http.response.body":
                gone.set()

        with suppress(Exception):
            await app(_scope(path), _request_first(receive), send)

    async def cancel(path: str) -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None: ...

        await cancel_when_waiting(app(_scope(path), _request_first(receive), send))

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
