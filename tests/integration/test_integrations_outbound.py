"""Outbound calls: a server's rate limit fields are parsed, and requests are delayed, but never beyond the bound."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from paceline import AsyncLimiter, Limiter, Plan, TokenBucket
from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.integrations.aiohttp import LimitedMiddleware
from paceline.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from paceline.integrations.outbound import OutboundLimiter
from paceline.integrations.requests import LimitedAdapter
from paceline.integrations.service_limits import Pauses
from paceline.limits.stores.memory import MemoryLimitStore
from paceline.testing import FakeClock

NOW = 1_800_000_000
PLANS = [Plan("own", TokenBucket(capacity=2, per_second=0.01)), Plan("free", TokenBucket(capacity=99, per_second=99))]


class Time:
    """A clock that advances with each sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


def test_pauses_end_are_bounded_and_are_not_shortened() -> None:
    time = Time()
    pauses = Pauses(3600, time.monotonic)
    pauses.record_response("a", 429, {"Retry-After": "10"}.get)
    pauses.record_response("a", 429, {"Retry-After": "3"}.get)
    pauses.record_response("b", 429, {"Retry-After": "999999999"}.get)
    assert (pauses.remaining("a"), pauses.remaining("b"), pauses.remaining("c")) == (10, 3600, 0)
    time.now += 10
    assert pauses.remaining("a") == 0
    for n in range(3000):
        pauses.record_response(f"host{n}", 429, {"Retry-After": "10"}.get)
    assert len(pauses._until) <= 1024
    assert pauses.remaining("host2999") == 10


async def test_a_request_waits_as_long_as_the_server_asked() -> None:
    time = Time()
    courtesy = OutboundLimiter(Limiter(plans=PLANS), "free", None, 1, 30, time.monotonic)
    courtesy.wait("host", sleep=time.sleep)
    assert time.slept == []
    courtesy.record_response("host", 429, {"Retry-After": "12"}.get)
    courtesy.wait("other", sleep=time.sleep)
    assert time.slept == []
    courtesy.wait("host", sleep=time.sleep)
    assert time.slept == [12]
    courtesy = OutboundLimiter(AsyncLimiter(plans=PLANS), "free", None, 1, 30, time.monotonic)
    courtesy.record_response("host", 200, {"RateLimit": '"x";r=0;t=4'}.get)
    await courtesy.wait_async("host", sleep=time.sleep_async)
    assert time.slept == [12, 4]


async def test_a_wait_beyond_the_bound_is_refused() -> None:
    time = Time()
    courtesy = OutboundLimiter(Limiter(plans=PLANS), "free", None, 1, 30, time.monotonic)
    courtesy.record_response("host", 429, {"Retry-After": "31"}.get)
    with pytest.raises(RateLimitExceeded) as refused:
        courtesy.wait("host", sleep=time.sleep)
    assert refused.value.decision.retry_after == 31
    asynchronous = OutboundLimiter(AsyncLimiter(plans=PLANS), "free", None, 1, 30, time.monotonic)
    asynchronous.record_response("host", 429, {"Retry-After": "31"}.get)
    with pytest.raises(RateLimitExceeded):
        await asynchronous.wait_async("host", sleep=time.sleep_async)
    time.now += 2
    courtesy.wait("host", sleep=time.sleep)
    assert time.slept == [29]


@pytest.mark.parametrize(("retry_after", "slept", "left"), [("5", [5.0], 97), ("99", [], 99)])
def test_a_pause_learnt_while_we_waited_is_kept(retry_after: str, slept: list[float], left: int) -> None:
    time, clock = Time(), FakeClock(datetime(2030, 1, 1, tzinfo=UTC))

    class Learning(Limiter):
        """Hears of the server's limit while it decides."""

        def reserve(self, *args: Any, **kwargs: Any) -> Any:
            if not time.slept:
                courtesy.record_response("host", 429, {"Retry-After": retry_after}.get)
            return super().reserve(*args, **kwargs)

    limiter = Learning(plans=[Plan("day", "99/day")], store=MemoryLimitStore(clock=clock))
    courtesy = OutboundLimiter(limiter, "day", None, 7, 30, time.monotonic, cost_of_response=lambda response: 2)
    if slept:
        charge = courtesy.wait("host", sleep=time.sleep)
        courtesy.settle(charge, None, 200, requests.Response())
    else:
        with pytest.raises(RateLimitExceeded):
            courtesy.wait("host", sleep=time.sleep)
    assert time.slept == slept
    assert limiter.peek("host", "day").remaining == left, "a request that was not sent is charged nothing"


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_wait"):
        OutboundLimiter(Limiter(plans=PLANS), "free", None, 1, -1)


class Partner(BaseHTTPRequestHandler):
    """Answers 200, or the status in the path, and counts."""

    calls: list[str]

    def do_GET(self) -> None:
        self.calls.append(self.path)
        self.send_response(429 if "busy" in self.path else 200)
        if "busy" in self.path:
            self.send_header("Retry-After", "3600")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def partner() -> Iterator[tuple[str, list[str]]]:
    calls: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OwnPartner", (Partner,), {"calls": calls}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", calls
    server.shutdown()
    thread.join()
    server.server_close()


# The same names in both: httpx2 continues httpx, which stays supported as long as it is used.
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_httpx_is_held_back_by_its_own_limit_and_the_servers(library: Any, partner: tuple[str, list[str]]) -> None:
    url, calls = partner
    with library.Client(transport=LimitedTransport(Limiter(plans=PLANS), "own", max_wait=0.1)) as client:
        assert [client.get(url).status_code for _ in range(2)] == [200, 200]
        with pytest.raises(RateLimitExceeded) as refused:
            client.get(url)
        assert refused.value.decision.plan == "own"
    client = library.Client(transport=LimitedTransport(Limiter(plans=PLANS), "free", max_wait=0.1))
    assert client.get(f"{url}/busy").status_code == 429
    with pytest.raises(RateLimitExceeded) as refused:
        client.get(url)
    assert 3590 < refused.value.decision.retry_after <= 3600
    client.close()
    assert calls == ["/", "/", "/busy"]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_async_httpx_is_held_back_by_its_own_limit_and_the_servers(
    library: Any, partner: tuple[str, list[str]]
) -> None:
    url, calls = partner
    limiter = AsyncLimiter(plans=PLANS)
    async with library.AsyncClient(transport=AsyncLimitedTransport(limiter, "own", key="k", max_wait=0.1)) as client:
        assert [(await client.get(url)).status_code for _ in range(2)] == [200, 200]
        with pytest.raises(RateLimitExceeded):
            await client.get(url)
    assert (await limiter.peek("k", ["own"])).remaining == 0
    client = library.AsyncClient(transport=AsyncLimitedTransport(limiter, "free", max_wait=0.1))
    assert (await client.get(f"{url}/busy")).status_code == 429
    with pytest.raises(RateLimitExceeded):
        await client.get(url)
    await client.aclose()
    assert calls == ["/", "/", "/busy"]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_the_transport_given_is_opened_used_and_closed(library: Any) -> None:
    events: list[str] = []

    class Own(library.BaseTransport, library.AsyncBaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            events.append(str(request.url))
            return library.Response(204)

        async def handle_async_request(self, request: Any) -> Any:
            return self.handle_request(request)

        def __enter__(self) -> Any:
            events.append("open")
            return self

        def close(self) -> None:
            events.append("close")

        async def __aenter__(self) -> Any:
            return self.__enter__()

        async def aclose(self) -> None:
            self.close()

    with library.Client(transport=LimitedTransport(Limiter(plans=PLANS), "own", transport=Own())) as client:
        assert client.get("http://a.example").status_code == 204
    async with library.AsyncClient(
        transport=AsyncLimitedTransport(AsyncLimiter(plans=PLANS), "own", transport=Own())
    ) as client:
        assert (await client.get("http://b.example")).status_code == 204
    assert events == ["open", "http://a.example", "close", "open", "http://b.example", "close"]


def test_neither_library_is_loaded_before_it_is_used() -> None:
    script = (
        "import sys\n"
        "from paceline import Limiter, Plan, TokenBucket\n"
        "from paceline.integrations.httpx import LimitedTransport\n"
        "LimitedTransport(Limiter(plans=[Plan('own', TokenBucket(2, 1))]), 'own').close()\n"
        "print({'httpx', 'httpx2'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "set()"


def test_requests_is_held_back_by_its_own_limit_and_the_servers(partner: tuple[str, list[str]]) -> None:
    url, calls = partner
    limiter = Limiter(plans=PLANS)
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, "own", max_wait=0.1, pool_maxsize=2))
        named = url.replace("http://", "http://ada:secret@")
        assert [session.get(address, timeout=30).status_code for address in (url, named)] == [200, 200]
        with pytest.raises(RateLimitExceeded):
            session.get(url, timeout=30)
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, "free", max_wait=0.1))
        assert session.get(f"{url}/busy", timeout=30).status_code == 429
        with pytest.raises(RateLimitExceeded):
            session.get(url, timeout=30)
    assert calls == ["/", "/", "/busy"]


# -- the refusal is an error of the library, too -----------------------------------------------------------------------


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_a_refusal_is_an_error_of_httpx(library: Any) -> None:
    with library.Client(transport=LimitedTransport(Limiter(plans=PLANS), "own", max_wait=0, cost=2)) as client:
        client._transport._transport = library.MockTransport(lambda request: library.Response(200))
        assert client.get("http://a.example").status_code == 200
        with pytest.raises(library.HTTPError) as refused:
            client.get("http://a.example/path")
        assert isinstance(refused.value, RateLimitExceeded)
        assert isinstance(refused.value, library.RequestError)
        assert refused.value.decision.plan == "own"
        assert str(refused.value.request.url) == "http://a.example/path"
        assert "retry after" in str(refused.value)
    transport = AsyncLimitedTransport(AsyncLimiter(plans=PLANS), "own", max_wait=0, cost=2)
    async with library.AsyncClient(transport=transport) as async_client:
        transport._transport = library.MockTransport(lambda request: library.Response(200))
        await async_client.get("http://a.example")
        with pytest.raises(library.HTTPError, match="plan 'own'"):
            await async_client.get("http://a.example")
    copy = pickle.loads(pickle.dumps(refused.value))
    assert isinstance(copy, RateLimitExceeded)
    assert copy.decision == refused.value.decision


def test_a_refusal_is_an_error_of_requests(partner: tuple[str, list[str]]) -> None:
    url, calls = partner
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(Limiter(plans=PLANS), "own", max_wait=0, cost=2))
        session.get(url, timeout=30)
        with pytest.raises(requests.RequestException) as refused:
            session.get(url, timeout=30)
    assert isinstance(refused.value, RateLimitExceeded)
    assert refused.value.decision.plan == "own"
    assert refused.value.request is not None
    assert len(calls) == 1
    copy = pickle.loads(pickle.dumps(refused.value))
    assert copy.decision == refused.value.decision


async def test_aiohttp_is_held_back_by_its_own_limit_and_the_servers(partner: tuple[str, list[str]]) -> None:
    url, calls = partner
    limiter = AsyncLimiter(plans=PLANS)
    async with aiohttp.ClientSession(middlewares=[LimitedMiddleware(limiter, "own", max_wait=0.1)]) as session:
        for address in (url, url.replace("http://", "http://ada:secret@")):
            async with session.get(address) as answer:
                assert answer.status == 200
        with pytest.raises(aiohttp.ClientError) as refused:
            await session.get(url)
        assert isinstance(refused.value, RateLimitExceeded)
        assert refused.value.decision.plan == "own"
        assert pickle.loads(pickle.dumps(refused.value)).decision == refused.value.decision
    async with aiohttp.ClientSession(middlewares=[LimitedMiddleware(limiter, "free", max_wait=0.1)]) as session:
        async with session.get(f"{url}/busy") as answer:
            assert answer.status == 429
        with pytest.raises(RateLimitExceeded) as paused:
            await session.get(url)
        assert 3590 < paused.value.decision.retry_after <= 3600
    assert calls == ["/", "/", "/busy"]
