"""A `Downstream` under every HTTP client: limits and keys per request, costs settled by the answer, streams,
cancellations and errors, the pauses that the other side asks for, and all of it exact with many requests at once."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys
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

from paceline import BlockingDownstream, Concurrency, ConfigurationError, Downstream, InvalidInput, RateLimitExceeded
from paceline.downstream.verdicts import Answer
from paceline.integrations.aiohttp import LimitedMiddleware
from paceline.integrations.requests import LimitedAdapter

LIMITS: dict[str, Any] = {"requests": "3/day", "tokens": "100/day"}


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
        self.send_response(429 if self.path == "/busy" else int(self.headers.get("X-Status", 200)))
        self.send_header("X-Tokens", self.headers.get("X-Tokens", "0"))
        if self.path == "/busy":
            self.send_header("Retry-After", "3600")
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
    """A client under which a downstream lies."""

    downstream: Any
    get: Callable[[str, Mapping[str, str]], Any]
    error: type[Exception]
    """The library's own."""
    is_async: bool
    stream: Callable[[str], AbstractAsyncContextManager[object]]
    """A block with a response whose body was not read; it is closed at the end of the block."""

    async def remaining(self, limit: str, key: str = "host") -> int:
        async def peek(downstream: Downstream) -> int:
            assert downstream._limiter is not None
            return (await downstream._limiter.peek(key, f"{downstream.name}:{limit}")).remaining

        if isinstance(self.downstream, BlockingDownstream):
            return await asyncio.to_thread(self.downstream._run, peek)
        return await peek(self.downstream)

    async def until_remaining(self, limit: str, count: int) -> None:
        """Returns when so much is left: aiohttp's responses end a moment after they were closed."""
        for _ in range(200):
            if await self.remaining(limit) == count:
                return
            await asyncio.sleep(0.01)
        assert await self.remaining(limit) == count

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
async def _httpx(library: Any, made: Mapping[str, Any], **options: Any) -> AsyncIterator[Client]:
    with (
        BlockingDownstream("partner", **made) as downstream,
        library.Client(transport=downstream.transport(**options), timeout=30) as client,
    ):

        def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            answer = client.get(url, headers=headers)
            return answer.status_code, answer.text

        @asynccontextmanager
        async def stream(url: str) -> AsyncIterator[None]:
            with client.stream("GET", url):
                yield

        yield Client(downstream, lambda *args: asyncio.to_thread(get, *args), library.HTTPError, False, stream)


@asynccontextmanager
async def _async_httpx(library: Any, kind: Any, made: Mapping[str, Any], **options: Any) -> AsyncIterator[Client]:
    downstream = kind("partner", **made)
    async with library.AsyncClient(transport=downstream.async_transport(**options), timeout=30) as client:

        async def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            answer = await client.get(url, headers=headers)
            return answer.status_code, answer.text

        yield Client(downstream, get, library.HTTPError, True, lambda url: client.stream("GET", url))
    if kind is Downstream:
        await downstream.close()
    else:
        downstream.close()


@asynccontextmanager
async def _requests(made: Mapping[str, Any], **options: Any) -> AsyncIterator[Client]:
    with BlockingDownstream("partner", **made) as downstream, requests.Session() as session:
        session.mount("http://", LimitedAdapter(downstream, pool_maxsize=64, **options))

        def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            answer = session.get(url, headers=headers, timeout=30)
            return answer.status_code, answer.text

        @asynccontextmanager
        async def stream(url: str) -> AsyncIterator[None]:
            with session.get(url, stream=True, timeout=30):
                yield

        yield Client(downstream, lambda *args: asyncio.to_thread(get, *args), requests.RequestException, False, stream)


@asynccontextmanager
async def _aiohttp(made: Mapping[str, Any], **options: Any) -> AsyncIterator[Client]:
    downstream = Downstream("partner", **made)
    async with downstream, aiohttp.ClientSession(middlewares=[LimitedMiddleware(downstream, **options)]) as session:

        async def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
            async with session.get(url, headers=headers) as answer:
                return answer.status, await answer.text()

        yield Client(downstream, get, aiohttp.ClientError, True, session.get)


CLIENTS: dict[str, Any] = {
    "httpx": lambda *args, **options: _httpx(httpx, *args, **options),
    "httpx2": lambda *args, **options: _httpx(httpx2, *args, **options),
    "httpx_async": lambda *args, **options: _async_httpx(httpx, Downstream, *args, **options),
    "httpx2_async": lambda *args, **options: _async_httpx(httpx2, Downstream, *args, **options),
    "httpx2_async_threads": lambda *args, **options: _async_httpx(httpx2, BlockingDownstream, *args, **options),
    "requests": _requests,
    "aiohttp": _aiohttp,
}


@pytest.fixture(params=CLIENTS)
def opening(request: pytest.FixtureRequest) -> Open:
    """Opens a client: `opening(limits=…, key=…, **options)`. A request that has no room is refused at once."""

    def opened(limits: Any = LIMITS, rate: str | None = None, **options: Any) -> AbstractAsyncContextManager[Client]:
        client: AbstractAsyncContextManager[Client] = CLIENTS[request.param](
            {"limits": limits, "rate": rate}, **{"timeout": 0, **options}
        )
        return client

    return opened


def tokens(answer: Answer) -> dict[str, int]:
    return {"tokens": int(answer.header("X-Tokens") or 0)}


def words(answer: Answer) -> dict[str, int] | None:
    return {"tokens": len(answer.content.split())} if answer.is_whole else None


async def test_allowed_then_refused_and_nothing_is_sent(opening: Open, partner: Served) -> None:
    async with opening() as client:
        assert await client.statuses(4, partner.url) == [200, 200, 200, 0]
    assert len(partner.handler.calls) == 3


async def test_key_and_costs_depend_on_the_request(opening: Open, partner: Served) -> None:
    def user(request: Any) -> Any:
        return request.headers.get("X-User")

    def cost(request: Any) -> Any:
        return {"tokens": int(request.headers.get("X-Cost", 1))}

    async with opening(key=user, costs=cost) as client:
        assert await client.statuses(2, partner.url, X_User="ada", X_Cost="60") == [200, 0]
        assert await client.statuses(1, partner.url, X_User="bob", X_Cost="60") == [200]
        assert await client.statuses(5, partner.url) == [200] * 5, "no key: not limited"
        assert await client.remaining("tokens", "ada") == 40


async def test_the_cost_is_what_the_answer_says(opening: Open, partner: Served) -> None:
    async with opening(costs={"tokens": 10}, settle=tokens) as client:
        assert await client.status(partner.url, X_Tokens="60") == 200
        await client.until_remaining("tokens", 40)
    async with opening(costs={"tokens": 10}, settle=words) as client:
        assert await client.get(f"{partner.url}/stream", {}) == (200, "one two three")
        await client.until_remaining("tokens", 97)


async def test_a_response_that_was_cut_off_stays_charged_as_reserved(opening: Open, partner: Served) -> None:
    async with opening(costs={"tokens": 10}, settle=words) as client:
        async with client.stream(f"{partner.url}/half"):
            assert await client.remaining("tokens") == 90
        seen = []
    async with opening(costs={"tokens": 10}, settle=lambda answer: seen.append(answer.is_whole)) as client:
        async with client.stream(f"{partner.url}/half"):
            assert seen == []
        for _ in range(200):
            if seen:
                break
            await asyncio.sleep(0.01)
        assert seen == [False]
        assert await client.remaining("tokens") == 90


async def test_a_wrong_settle_breaks_no_request(
    opening: Open, partner: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async with opening(costs={"tokens": 7}, settle=lambda answer: 1 / 0) as client:
        assert await client.status(partner.url) == 200
        assert await client.remaining("tokens") == 93
    assert "stays charged as reserved" in caplog.text


async def test_a_request_without_an_answer_stays_charged(opening: Open) -> None:
    with socket.socket() as taken:  # bound, and nothing listens: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with opening(costs={"tokens": 7}, rate="100/second") as client:
            with pytest.raises(client.error) as failed:
                await client.get(url, {})
            assert not isinstance(failed.value, RateLimitExceeded)
            assert (await _state(client.downstream)).running == 0


async def test_a_cancelled_request_stays_charged(opening: Open, partner: Served) -> None:
    async with opening(costs={"tokens": 7}, settle=tokens) as client:
        if not client.is_async:
            pytest.skip("nobody can cancel a thread")
        task = asyncio.create_task(client.get(f"{partner.url}/wait", {}))
        assert await asyncio.to_thread(partner.handler.reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.remaining("tokens") == 93


async def test_a_pause_that_the_other_side_asks_for_holds_for_the_next_request(opening: Open, partner: Served) -> None:
    async with opening(limits={}, rate="100/second", timeout=1) as client:
        assert await client.status(f"{partner.url}/busy") == 429
        with pytest.raises(RateLimitExceeded) as refused:
            await client.get(partner.url, {})
        assert 3500 < refused.value.decision.retry_after <= 3600
        assert isinstance(refused.value, client.error)
        copy = pickle.loads(pickle.dumps(refused.value))
        assert copy.decision == refused.value.decision
    assert partner.handler.calls == ["/busy"]


async def test_a_place_is_held_until_the_response_ends(opening: Open, partner: Served) -> None:
    async with opening({"open": Concurrency(1), "tokens": "100/day"}) as client:
        assert await client.statuses(3, partner.url) == [200] * 3
        assert await client.get(f"{partner.url}/stream", {}) == (200, "one two three")
        await client.until_remaining("open", 1)
        async with client.stream(f"{partner.url}/half"):
            assert await client.remaining("open") == 0
            assert await client.status(partner.url) == 0
        await client.until_remaining("open", 1)
        assert await client.remaining("tokens") == 95, "the refused call was charged nothing"


async def test_exact_with_64_requests(opening: Open, partner: Served) -> None:
    async with opening() as client:
        statuses = await asyncio.gather(*(client.status(partner.url) for _ in range(64)))
        assert Counter(statuses) == {200: 3, 0: 61}
    assert len(partner.handler.calls) == 3


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_a_transport_of_ones_own_sends_the_requests(library: Any) -> None:
    events: list[str] = []

    class Own(library.BaseTransport, library.AsyncBaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            events.append(str(request.url))
            return library.Response(204)

        async def handle_async_request(self, request: Any) -> Any:
            return self.handle_request(request)

        def close(self) -> None:
            events.append("close")

        async def aclose(self) -> None:
            self.close()

    threads = BlockingDownstream("partner", rate="100/second")
    with threads, library.Client(transport=threads.transport(transport=Own())) as client:
        assert client.get("http://a.example").status_code == 204
    downstream = Downstream("partner", rate="100/second")
    async with downstream, library.AsyncClient(transport=downstream.transport(transport=Own())) as client:
        assert (await client.get("http://b.example")).status_code == 204
    assert events == ["http://a.example", "close", "http://b.example", "close"]


def test_neither_library_is_loaded_before_it_is_used() -> None:
    script = (
        "import sys\n"
        "from paceline import Downstream\n"
        "Downstream('partner', rate='1/second').transport().close()\n"
        "print({'httpx', 'httpx2'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "set()"


def test_what_cannot_be_used() -> None:
    downstream, threads = Downstream("partner", limits=LIMITS), BlockingDownstream("partner", limits=LIMITS)
    with pytest.raises(ConfigurationError, match="settle"):
        downstream.transport(settle=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout"):
        threads.transport(timeout=-1)
    with pytest.raises(InvalidInput, match="no limit 'token'"):
        LimitedAdapter(threads, costs={"token": 5})
    with pytest.raises(ConfigurationError, match="give a BlockingDownstream"):
        LimitedAdapter(downstream)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="event loop"):
        LimitedMiddleware(threads)  # type: ignore[arg-type]
    client = httpx2.Client(transport=downstream.transport())
    with pytest.raises(ConfigurationError, match="give a BlockingDownstream's"):
        client.get("http://a.example")
    threads.close()


async def _state(downstream: Any) -> Any:
    state = downstream.state
    return await state() if isinstance(downstream, Downstream) else await asyncio.to_thread(state)
