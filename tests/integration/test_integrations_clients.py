"""The contract of client integrations, in every HTTP client: its own limit and exemptions per request, charges by
response, streams, cancellations and errors, and all of it exact with many requests at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import httpx
import httpx2
import pytest
import requests

from paceline import AsyncLimiter, Concurrency, ConfigurationError, FixedWindow, Limiter, Plan, RateLimitExceeded
from paceline.integrations.aiohttp import LimitedMiddleware
from paceline.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from paceline.integrations.limit import Response
from paceline.integrations.requests import LimitedAdapter

PLANS = [
    Plan("small", FixedWindow(limit=2, window="P1D")),
    Plan("large", FixedWindow(limit=5, window="P1D")),
    Plan("tokens", FixedWindow(limit=100, window="P1D")),
    Plan("flights", Concurrency(1, expires="PT10M")),
]


class Partner(BaseHTTPRequestHandler):
    """Answers with the status and the header `X-Tokens` that the request asks for; `/stream` in three parts; `/wait`
    when the test lets it, and the second part of `/half` too."""

    protocol_version = "HTTP/1.1"
    calls: list[str]
    reached: threading.Event
    answering: threading.Event

    def do_GET(self) -> None:
        self.calls.append(self.path)
        if self.path == "/wait":
            self.reached.set()
            self.answering.wait(20)
        self.send_response(int(self.headers.get("X-Status", 200)))
        self.send_header("X-Tokens", self.headers.get("X-Tokens", "0"))
        if self.path == "/stream":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n")
        elif self.path == "/half":
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"1")
            self.answering.wait(20)
            with suppress(OSError):
                self.wfile.write(b"2")
        else:
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


class Served(NamedTuple):
    url: str
    handler: type[Partner]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    handler = type("OwnPartner", (Partner,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield Served(f"http://127.0.0.1:{listening.server_port}", handler)
        listening.shutdown()
        thread.join()


@pytest.fixture
def partner(server: Served) -> Iterator[Served]:
    server.handler.calls, server.handler.reached, server.handler.answering = [], threading.Event(), threading.Event()
    yield server
    server.handler.answering.set()


class Client(NamedTuple):
    """A client behind a limit."""

    limiter: Any
    get: Callable[[str, Mapping[str, str]], Any]
    error: type[Exception]
    """The library's own."""
    is_async: bool
    stream: Callable[[str], AbstractAsyncContextManager[object]]
    """A block with a response whose body was not read; it is closed at the end of the block."""

    async def remaining(self, plan: str, key: str) -> int:
        decision = self.limiter.peek(key, plan)
        return int((await decision if self.is_async else decision).remaining)

    async def statuses(self, count: int, url: str, **headers: str) -> list[int]:
        """Those of the answers; 0 of a request that was refused."""
        return [await self.status(url, **headers) for _ in range(count)]

    async def status(self, url: str, **headers: str) -> int:
        try:
            return int((await self.get(url, {name.replace("_", "-"): text for name, text in headers.items()}))[0])
        except RateLimitExceeded as refused:
            return 0 if isinstance(refused, self.error) else -1


Open: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def _httpx(library: Any, plans: Any, **options: Any) -> AsyncIterator[Client]:
    limiter = Limiter(plans=PLANS)
    with library.Client(transport=LimitedTransport(limiter, plans, **options), timeout=30) as client:

        def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            answer = client.get(url, headers=headers)
            return answer.status_code, answer.text

        @asynccontextmanager
        async def stream(url: str) -> AsyncIterator[None]:
            with client.stream("GET", url):
                yield

        yield Client(limiter, lambda *args: asyncio.to_thread(get, *args), library.HTTPError, False, stream)


@asynccontextmanager
async def _async_httpx(library: Any, plans: Any, **options: Any) -> AsyncIterator[Client]:
    limiter = AsyncLimiter(plans=PLANS)
    async with library.AsyncClient(transport=AsyncLimitedTransport(limiter, plans, **options), timeout=30) as client:

        async def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            answer = await client.get(url, headers=headers)
            return answer.status_code, answer.text

        yield Client(limiter, get, library.HTTPError, True, lambda url: client.stream("GET", url))


@asynccontextmanager
async def _requests(plans: Any, **options: Any) -> AsyncIterator[Client]:
    limiter = Limiter(plans=PLANS)
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, plans, pool_maxsize=64, **options))

        def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            answer = session.get(url, headers=headers, timeout=30)
            return answer.status_code, answer.text

        @asynccontextmanager
        async def stream(url: str) -> AsyncIterator[None]:
            with session.get(url, stream=True, timeout=30):
                yield

        yield Client(limiter, lambda *args: asyncio.to_thread(get, *args), requests.RequestException, False, stream)


@asynccontextmanager
async def _aiohttp(plans: Any, **options: Any) -> AsyncIterator[Client]:
    limiter = AsyncLimiter(plans=PLANS)
    async with aiohttp.ClientSession(middlewares=[LimitedMiddleware(limiter, plans, **options)]) as session:

        async def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            async with session.get(url, headers=headers) as answer:
                return answer.status, await answer.text()

        yield Client(limiter, get, aiohttp.ClientError, True, session.get)


CLIENTS: dict[str, Any] = {
    "httpx": lambda *args, **options: _httpx(httpx, *args, **options),
    "httpx2": lambda *args, **options: _httpx(httpx2, *args, **options),
    "httpx_async": lambda *args, **options: _async_httpx(httpx, *args, **options),
    "httpx2_async": lambda *args, **options: _async_httpx(httpx2, *args, **options),
    "requests": _requests,
    "aiohttp": _aiohttp,
}


@pytest.fixture(params=CLIENTS)
def opening(request: pytest.FixtureRequest) -> Open:
    """Opens a client: `opening(plans, key=…, **options)`. A request that has no room is refused at once."""

    def opened(plans: Any, **options: Any) -> AbstractAsyncContextManager[Client]:
        client: AbstractAsyncContextManager[Client] = CLIENTS[request.param](
            plans, **{"key": "all", "max_wait": 0, **options}
        )
        return client

    return opened


BY_RESPONSE = pytest.mark.parametrize(
    "options", [{}, {"charge_when": lambda response: True}], ids=["plain", "by response"]
)


def tokens(response: Response) -> int:
    return int(response.headers["x-tokens"])


async def test_allowed_then_refused_and_nothing_is_sent(opening: Open, partner: Served) -> None:
    async with opening("small") as client:
        assert await client.statuses(3, partner.url) == [200, 200, 0]
    assert len(partner.handler.calls) == 2


async def test_plan_key_and_cost_depend_on_the_request(opening: Open, partner: Served) -> None:
    def tier(request: Any) -> Any:
        return {"gold": "large", "two": ["small", "large"], "staff": None}.get(request.headers.get("X-Tier"), "small")

    def user(request: Any) -> Any:
        return request.headers.get("X-User")

    async with opening(tier, key=user, cost=lambda request: int(request.headers.get("X-Cost", 1))) as client:
        assert await client.statuses(3, partner.url, X_User="ada") == [200, 200, 0]
        assert await client.statuses(3, partner.url, X_User="ada", X_Tier="gold", X_Cost="2") == [200, 200, 0]
        assert await client.statuses(1, partner.url, X_User="ada", X_Tier="two") == [0]
        assert await client.statuses(1, partner.url, X_User="bob", X_Tier="two") == [200]
        assert await client.statuses(4, partner.url, X_User="ada", X_Tier="staff") == [200] * 4
        assert await client.statuses(4, partner.url) == [200] * 4, "no key: not limited"
        assert client.limiter.exempt_calls == {"tier": 8}


async def test_exempt_requests_pass_and_are_counted(opening: Open, partner: Served) -> None:
    async with opening("2/day", exempt=lambda request: request.headers.get("X-Staff") == "yes") as client:
        assert await client.statuses(4, partner.url, X_Staff="yes") == [200] * 4
        assert client.limiter.exempt_calls == {"2/day": 4}
        assert await client.statuses(3, partner.url) == [200, 200, 0]


async def test_only_failures_are_charged(opening: Open, partner: Served) -> None:
    async with opening("small", charge_when=lambda response: response.status_code == 401) as client:
        assert await client.statuses(4, partner.url) == [200] * 4
        assert await client.statuses(3, partner.url, X_Status="401") == [401, 401, 0]


async def test_the_cost_is_what_the_response_says(opening: Open, partner: Served) -> None:
    async with opening("tokens", cost=10, cost_of_response=tokens) as client:
        assert await client.status(partner.url, X_Tokens="60") == 200
        assert await client.remaining("tokens", "all") == 40
        assert await client.get(f"{partner.url}/stream", {"X-Tokens": "3"}) == (200, "one two three")
        assert await client.remaining("tokens", "all") == 37


async def test_a_wrong_charge_function_breaks_no_request(
    opening: Open, partner: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async with opening("tokens", cost=7, cost_of_response=lambda response: 1 / 0) as client:
        assert await client.status(partner.url) == 200
        assert await client.remaining("tokens", "all") == 93
    assert "stays at 7" in caplog.text


async def test_a_request_without_an_answer_stays_charged(opening: Open) -> None:
    with socket.socket() as taken:  # bound, and nothing listens: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with opening("tokens", cost=7, cost_of_response=tokens) as client:
            with pytest.raises(client.error) as failed:
                await client.get(url, {})
            assert not isinstance(failed.value, RateLimitExceeded)
            assert await client.remaining("tokens", "all") == 93


async def test_a_cancelled_request_stays_charged(opening: Open, partner: Served) -> None:
    async with opening("tokens", cost=7, cost_of_response=tokens) as client:
        if not client.is_async:
            pytest.skip("nobody can cancel a thread")
        task = asyncio.create_task(client.get(f"{partner.url}/wait", {}))
        assert await asyncio.to_thread(partner.handler.reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.remaining("tokens", "all") == 93


@BY_RESPONSE
async def test_a_place_is_held_until_the_response_ends(opening: Open, partner: Served, options: Any) -> None:
    async with opening(["flights", "tokens"], **options) as client:
        assert await client.statuses(3, partner.url) == [200] * 3
        assert await client.get(f"{partner.url}/stream", {}) == (200, "one two three")
        assert await client.remaining("flights", "all") == 1
        async with client.stream(f"{partner.url}/half"):
            assert await client.remaining("flights", "all") == 0
            assert await client.status(partner.url) == 0
        assert await client.remaining("flights", "all") == 1, "closed, and not read"
        assert await client.remaining("tokens", "all") == 95, "the refused call was charged nothing"


@BY_RESPONSE
async def test_a_call_that_failed_holds_no_place(opening: Open, partner: Served, options: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with opening("flights", **options) as client:
            with pytest.raises(client.error):
                await client.get(f"http://127.0.0.1:{taken.getsockname()[1]}", {})
            assert await client.remaining("flights", "all") == 1
            if client.is_async:
                task = asyncio.create_task(client.get(f"{partner.url}/wait", {}))
                assert await asyncio.to_thread(partner.handler.reached.wait, 20)
                assert await client.remaining("flights", "all") == 0
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await client.remaining("flights", "all") == 1


@BY_RESPONSE
async def test_exact_with_64_requests(opening: Open, partner: Served, options: Any) -> None:
    async with opening(["large", "tokens"], **options) as client:
        statuses = await asyncio.gather(*(client.status(partner.url) for _ in range(64)))
        assert Counter(statuses) == {200: 5, 0: 59}
        assert await client.remaining("tokens", "all") == 95
    assert len(partner.handler.calls) == 5


def test_what_cannot_be_used() -> None:
    with pytest.raises(ConfigurationError, match="no plan 'smal'"):
        LimitedTransport(Limiter(plans=PLANS), "smal")
    with pytest.raises(ConfigurationError, match="charge_when"):
        LimitedTransport(Limiter(plans=PLANS), "small", charge_when=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cost"):
        LimitedAdapter(Limiter(plans=PLANS), "small", cost=0)
