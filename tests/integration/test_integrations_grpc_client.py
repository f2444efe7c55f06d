"""A `Downstream` under gRPC clients: calls wait for their turn, are settled by their message, and obey pushback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

from paceline import BlockingDownstream, ConfigurationError, Downstream, RateLimitExceeded
from paceline.downstream.verdicts import Answer
from paceline.integrations.grpc_client import DownstreamInterceptor, GrpcCall, async_interceptors

LIMITS = {"calls": "3/day", "tokens": "100/day"}
ONE, MANY, BUSY, LATE = "/shop.Orders/One", "/shop.Orders/Many", "/shop.Orders/Busy", "/shop.Orders/Late"


class Shop(grpc.GenericRpcHandler):
    """Echoes, streams a message three times, is busy, or never answers."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def service(self, handler_call_details: Any) -> Any:
        self.calls.append(handler_call_details.method)
        match handler_call_details.method:
            case "/shop.Orders/Many":
                return grpc.unary_stream_rpc_method_handler(lambda request, context: iter([request] * 3))
            case "/shop.Orders/Busy":
                return grpc.unary_unary_rpc_method_handler(_busy)
            case "/shop.Orders/Late":
                return grpc.unary_unary_rpc_method_handler(_late)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def _busy(request: bytes, context: Any) -> bytes:
    context.set_trailing_metadata((("grpc-retry-pushback-ms", "3600000"),))
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    return b""


def _late(request: bytes, context: Any) -> bytes:
    while context.is_active():
        context.time_remaining()
    return b""


@pytest.fixture
def shop() -> Iterator[tuple[str, list[str]]]:
    handler = Shop()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", handler.calls
    server.stop(0).wait()


def words(answer: Answer) -> dict[str, int] | None:
    return None if answer.body is None else {"tokens": len(answer.body.split())}


def method_of(call: GrpcCall) -> str:
    return call.method


def test_threads_wait_are_settled_and_refused(shop: tuple[str, list[str]]) -> None:
    address, calls = shop
    with BlockingDownstream("shop", limits=LIMITS) as downstream:
        limited = DownstreamInterceptor(downstream, words, costs={"tokens": 10}, timeout=0)
        with grpc.insecure_channel(address) as bare:
            channel: Any = grpc.intercept_channel(bare, limited)
            assert channel.unary_unary(ONE)(b"one two three") == b"one two three"
            assert _tokens(downstream) == 97
            assert list(channel.unary_stream(MANY)(b"part")) == [b"part"] * 3
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(LATE)(b"", timeout=0.2)
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(ONE)(b"one")
            assert isinstance(refused.value, RateLimitExceeded)
            assert _tokens(downstream) == 77
    assert calls == [ONE, MANY, LATE]


async def test_an_event_loop_has_the_same(shop: tuple[str, list[str]]) -> None:
    address, calls = shop
    async with Downstream("shop", limits=LIMITS) as downstream:
        limited = async_interceptors(downstream, words, costs={"tokens": 10}, timeout=0)
        async with grpc.aio.insecure_channel(address, interceptors=limited) as opened:
            channel: Any = opened
            assert await channel.unary_unary(ONE)(b"one two three") == b"one two three"
            parts = [part async for part in _stream(channel)]
            assert parts == [b"part"] * 3
            await channel.unary_unary(ONE)(b"one")
            with pytest.raises(RateLimitExceeded):
                await channel.unary_unary(ONE)(b"one")
        for _ in range(200):
            if (await downstream.state()).running == 0:
                break
            await asyncio.sleep(0.01)
        assert downstream._limiter is not None
        assert (await downstream._limiter.peek("host", "shop:tokens")).remaining == 100 - 3 - 10 - 1
    assert calls == [ONE, MANY, ONE]


def test_pushback_pauses_the_next_call_of_its_key(shop: tuple[str, list[str]]) -> None:
    address, calls = shop
    with BlockingDownstream("shop", rate="100/second") as downstream:
        limited = DownstreamInterceptor(downstream, key=method_of, timeout=1)
        with grpc.insecure_channel(address) as bare:
            channel: Any = grpc.intercept_channel(bare, limited)
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(BUSY)(b"")
            with pytest.raises(RateLimitExceeded) as refused:
                channel.unary_unary(BUSY)(b"")
            assert 3500 < refused.value.decision.retry_after <= 3600
            assert channel.unary_unary(ONE)(b"x") == b"x"
    assert calls == [BUSY, ONE]


def test_each_kind_of_channel_needs_its_kind_of_downstream() -> None:
    with pytest.raises(ConfigurationError, match="BlockingDownstream"):
        DownstreamInterceptor(Downstream("shop", limits=LIMITS))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="event loop"):
        async_interceptors(BlockingDownstream("shop", limits=LIMITS))  # type: ignore[arg-type]


async def _stream(channel: Any) -> AsyncIterator[bytes]:
    async for part in channel.unary_stream(MANY)(b"part"):
        yield part


def _tokens(downstream: BlockingDownstream) -> int:
    async def peek(here: Downstream) -> int:
        assert here._limiter is not None
        return (await here._limiter.peek("host", "shop:tokens")).remaining

    return downstream._run(peek)
