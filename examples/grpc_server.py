"""A gRPC server whose methods are limited, and a client that is denied.

Run it:  python examples/grpc_server.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from paceline import Limiter, Plan, TokenBucket
from paceline.integrations.grpc import MethodRule, RateLimitInterceptor, header

limiter = Limiter(plans=[Plan("gold", TokenBucket(capacity=3, per_second=0.1))])
interceptor = RateLimitInterceptor(limiter, rules=[MethodRule("/shop.Orders/*", "gold", key=header("x-api-key"))])


def get_order(request: bytes, context: Any) -> bytes:
    return b"order " + request


def serve() -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[interceptor])
    handlers: dict[str, Any] = {"Get": grpc.unary_unary_rpc_method_handler(get_order)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Orders", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


if __name__ == "__main__":
    server, port = serve()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        get: Any = channel.unary_unary("/shop.Orders/Get")
        for number in range(4):
            try:
                print(get(str(number).encode(), metadata=(("x-api-key", "abc"),)).decode())
            except grpc.RpcError as error:
                denied: Any = error
                print(denied.code().name, "retry after", dict(denied.trailing_metadata())["retry-after"], "s")
    server.stop(grace=5).wait()
