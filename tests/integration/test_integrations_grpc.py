"""Interceptors for gRPC, blocking and async, over a real channel."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from paceline import AsyncLimiter, ConfigurationError, Decision, FixedWindow, Limiter, Plan
from paceline.integrations.grpc import (
    AsyncRateLimitInterceptor,
    MethodRule,
    RateLimitInterceptor,
    client_address,
    everyone,
    header,
    peer_address,
    route,
)
from paceline.integrations.limit import Response
from paceline.testing import eventually

PLANS = [
    Plan("small", FixedWindow(limit=2, window="PT1H")),
    Plan("large", FixedWindow(limit=5, window="PT1H")),
    Plan("tokens", FixedWindow(limit=100, window="P1D")),
]
ALL = everyone("all")
OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED


def _asked(context: Any) -> dict[str, Any]:
    asked: dict[str, Any] = dict(context.invocation_metadata())
    context.set_trailing_metadata((("x-tokens", asked.get("x-tokens", "0")),))
    return asked


class Blocking:
    """Methods of a blocking server."""

    def call(self, request: bytes, context: Any) -> bytes:
        asked = _asked(context)
        context.send_initial_metadata((("x-own", "yes"),))
        if "x-fail" in asked:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        if "x-raise" in asked:
            raise RuntimeError("a mistake")
        return b"hello"

    def stream(self, request: bytes, context: Any) -> Any:
        left = threading.Event()
        if "x-leave" in _asked(context):
            context.add_callback(left.set)
        for part in (b"one", b"two", b"three"):
            yield part
            if "x-leave" in dict(context.invocation_metadata()):
                left.wait(20)

    def upload(self, requests: Any, context: Any) -> bytes:
        return b"".join(requests)


class Async:
    """The same of an async one."""

    async def call(self, request: bytes, context: Any) -> bytes:
        asked = _asked(context)
        await context.send_initial_metadata((("x-own", "yes"),))
        if "x-fail" in asked:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no", context.trailing_metadata())
        if "x-raise" in asked:
            raise RuntimeError("a mistake")
        return b"hello"

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        asked = _asked(context)
        for part in (b"one", b"two", b"three"):
            yield part
            if "x-leave" in asked:
                await asyncio.Event().wait()

    async def upload(self, requests: Any, context: Any) -> bytes:
        return b"".join([part async for part in requests])


class Called:
    """A running server."""

    def __init__(self, channel: Any, limiter: Limiter | AsyncLimiter) -> None:
        self._channel = channel
        self._limiter = limiter

    async def call(self, name: str = "Call", **metadata: str) -> tuple[grpc.StatusCode, dict[str, str]]:
        """The status, and all metadata that came back."""
        call: Any = self._channel.unary_unary(f"/test.Test/{name}")(b"", metadata=_fields(metadata))
        code = await call.code()
        initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
        return code, {**dict(initial or ()), **dict(trailing or ())}

    async def codes(self, count: int, name: str = "Call", **metadata: str) -> list[grpc.StatusCode]:
        return [(await self.call(name, **metadata))[0] for _ in range(count)]

    async def stream(self, take: int = 3, **metadata: str) -> list[bytes]:
        call: Any = self._channel.unary_stream("/test.Test/Stream")(b"", metadata=_fields(metadata))
        parts = []
        async for part in call:
            parts.append(part)
            if len(parts) == take < 3:
                call.cancel()
                break
        return parts

    async def upload(self, *parts: bytes) -> Any:
        return await self._channel.stream_unary("/test.Test/Upload")(iter(parts))

    async def remaining(self, plan: str, key: str = "all") -> int:
        decision = self._limiter.peek(key, plan)
        return (decision if isinstance(decision, Decision) else await decision).remaining

    async def exempt(self) -> dict[str, int]:
        return self._limiter.exempt_calls


def _fields(metadata: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), value) for name, value in metadata.items())


@pytest.fixture(params=["blocking", "async", "async-blocking-limiter"])
def opening(request: pytest.FixtureRequest) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(
        plans: Any, *, key: Any = ALL, pattern: str = "/test.Test/*", **options: Any
    ) -> AsyncIterator[Called]:
        rules = [MethodRule(pattern, plans, key=key, **options)]
        blocking = request.param == "blocking"
        servicer: Any = Blocking() if blocking else Async()
        limiter: Any = AsyncLimiter(plans=PLANS) if request.param == "async" else Limiter(plans=PLANS)
        handlers: dict[str, Any] = {
            "Call": grpc.unary_unary_rpc_method_handler(servicer.call),
            "Other": grpc.unary_unary_rpc_method_handler(servicer.call),
            "Stream": grpc.unary_stream_rpc_method_handler(servicer.stream),
            "Upload": grpc.stream_unary_rpc_method_handler(servicer.upload),
        }
        generic = grpc.method_handlers_generic_handler("test.Test", handlers)
        if blocking:
            server: Any = grpc.server(ThreadPoolExecutor(8), interceptors=[RateLimitInterceptor(limiter, rules)])
        else:
            server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limiter, rules)])
        server.add_generic_rpc_handlers((generic,))
        port = server.add_insecure_port("127.0.0.1:0")
        started = server.start()
        if not blocking:
            await started
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Called(channel, limiter)
        stopped = server.stop(None)
        await asyncio.to_thread(stopped.wait) if blocking else await stopped

    return opened


async def test_allowed_then_denied_with_metadata(opening: Any) -> None:
    async with opening("small") as called:
        answers = [await called.call() for _ in range(3)]
        assert [code for code, _ in answers] == [OK, OK, DENIED]
        assert answers[0][1]["ratelimit"] == '"small";r=1;t=3600'
        assert answers[2][1]["ratelimit-policy"] == '"small";q=2;w=3600'
        assert answers[2][1]["retry-after"] == "3600"
        assert "retry-after" not in answers[0][1]
        assert answers[0][1]["x-own"] == "yes"
        assert answers[0][1]["x-tokens"] == "0"


async def test_other_methods_are_not_limited(opening: Any) -> None:
    async with opening("small", pattern="/test.Test/Call") as called:
        assert await called.codes(3) == [OK, OK, DENIED]
        assert await called.codes(3, "Other") == [OK] * 3
        assert await called.codes(1, "Missing") == [grpc.StatusCode.UNIMPLEMENTED]


async def test_plans_keys_and_exemptions_depend_on_the_call(opening: Any) -> None:
    def metadata(context: Any) -> dict[str, Any]:
        return dict(context.invocation_metadata())

    def tier(context: Any) -> str | None:
        return {"gold": "large", "staff": None}.get(metadata(context).get("x-tier", ""), "small")

    async with opening(tier, exempt=lambda context: "x-free" in metadata(context)) as called:
        assert await called.codes(3) == [OK, OK, DENIED]
        assert await called.codes(6, x_tier="gold") == [OK] * 5 + [DENIED]
        assert await called.codes(3, x_tier="staff") == [OK] * 3
        assert await called.codes(3, x_free="yes") == [OK] * 3
        assert await called.exempt() == {"tier": 6}
    async with opening("2/hour", key=header("x-user")) as called:
        assert await called.codes(3, x_user="ada") == [OK, OK, DENIED]
        assert await called.codes(1, x_user="bob") == [OK]
        assert await called.codes(1) == [grpc.StatusCode.INVALID_ARGUMENT]
    async with opening("small", key=client_address()) as called:
        assert await called.codes(3) == [OK, OK, DENIED]
    async with opening("small", key=route()) as called:
        assert [*await called.codes(3), *await called.codes(1, "Other")] == [OK, OK, DENIED, OK]


async def test_only_failures_are_charged(opening: Any) -> None:
    unauthenticated = grpc.StatusCode.UNAUTHENTICATED

    def failed(response: Response) -> bool:
        return response.status_code == unauthenticated.value[0]

    async with opening("small", charge_when=failed) as called:
        assert await called.codes(4) == [OK] * 4
        assert await called.codes(3, x_fail="yes") == [unauthenticated, unauthenticated, DENIED]


async def test_an_error_in_the_handler_is_unknown(opening: Any) -> None:
    seen: list[int] = []

    def never(response: Response) -> bool:
        seen.append(response.status_code)
        return False

    async with opening("small", charge_when=never) as called:
        assert await called.codes(3, x_raise="yes") == [grpc.StatusCode.UNKNOWN] * 3
        assert seen == [2, 2, 2]
        assert await called.remaining("small") == 2


async def test_tokens_streams_and_uploads(opening: Any) -> None:
    def tokens(response: Response) -> int:
        return int(response.headers["x-tokens"])

    async with opening("tokens", cost=5, cost_of_response=tokens) as called:
        await called.call(x_tokens="40")
        assert await called.remaining("tokens") == 60
        assert await called.stream(x_tokens="20") == [b"one", b"two", b"three"]
        assert await called.remaining("tokens") == 40
    async with opening("small") as called:
        assert await called.upload(b"a", b"b") == b"ab"
        assert await called.remaining("small") == 1
        assert await called.stream(take=1) == [b"one"]
        assert await called.remaining("small") == 0
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await called.stream()
        assert denied.value.code() is DENIED


async def test_an_error_in_the_handler_is_charged_as_any_other_call(opening: Any) -> None:
    async with opening("small") as called:
        assert await called.codes(3, x_raise="yes") == [grpc.StatusCode.UNKNOWN] * 2 + [DENIED]


async def test_a_client_who_leaves_a_stream_is_charged(opening: Any) -> None:
    settled: asyncio.Queue[bool] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def cost(response: Response) -> int:
        loop.call_soon_threadsafe(settled.put_nowait, response.completed)
        return int(response.headers["x-tokens"])

    async with opening("tokens", cost=50, cost_of_response=cost) as called:
        assert await called.stream(take=1, x_tokens="7", x_leave="yes") == [b"one"]
        assert not await asyncio.wait_for(settled.get(), 20), "it was cut off"

        async def is_settled() -> bool:
            return bool(await called.remaining("tokens") == 93)

        await eventually(is_settled)


async def test_exact_with_64_clients_by_response(opening: Any) -> None:
    failed = grpc.StatusCode.UNAUTHENTICATED
    async with opening("tokens", charge_when=lambda response: response.status_code == failed.value[0]) as called:
        calls = (called.call(**({"x_fail": "yes"} if number % 2 else {})) for number in range(64))
        answers = await asyncio.gather(*calls)
        assert Counter(code for code, _ in answers) == {OK: 32, failed: 32}
        assert await called.remaining("tokens") == 68


async def test_exact_with_64_clients(opening: Any) -> None:
    async with opening(["large", "tokens"]) as called:
        answers = await asyncio.gather(*(called.call() for _ in range(64)))
        assert Counter(code for code, _ in answers) == {OK: 5, DENIED: 59}
        assert await called.remaining("tokens") == 95


async def test_a_cancelled_call_stays_charged() -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def wait(request: bytes, context: Any) -> bytes:
        reached.set()
        await never.wait()
        return b""

    limiter = AsyncLimiter(plans=PLANS)
    rule = MethodRule("*", "tokens", key=ALL, cost=50, cost_of_response=lambda response: 0)
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limiter, [rule])])
    handlers: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calling: Any = channel
        call = calling.unary_unary("/test.Test/Wait")(b"")
        await asyncio.wait_for(reached.wait(), 20)
        call.cancel()
    await server.stop(None)
    assert (await limiter.peek("all", "tokens")).remaining == 50


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4711", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::1"),
        ("ipv6:[::1]:4711", "::1"),
        ("unix:/run/paceline.sock", None),
        ("unix:", None),
        ("ipv4:nonsense:1", None),
        ("", None),
    ],
)
def test_peers(peer: str, address: str | None) -> None:
    assert peer_address(peer) == address


def test_what_cannot_be_used() -> None:
    with pytest.raises(ConfigurationError, match="pattern"):
        MethodRule("test.Test/Call", "small", key=ALL)
    with pytest.raises(ConfigurationError, match="block"):
        MethodRule("*", "small", key=ALL, block=False)
    with pytest.raises(ConfigurationError, match="give a Limiter"):
        RateLimitInterceptor(AsyncLimiter(plans=PLANS), [])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no plan 'smal'"):
        AsyncRateLimitInterceptor(AsyncLimiter(plans=PLANS), [MethodRule("*", "smal", key=ALL)])
