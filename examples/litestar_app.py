"""A Litestar application whose handlers are limited: one by a decorator, the others by default.

Run it:  python examples/litestar_app.py
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

from __future__ import annotations

import sys

import uvicorn
from litestar import Litestar, get

from paceline import AsyncLimiter, Plan, TokenBucket
from paceline.integrations.litestar import Limit, RateLimitPlugin, client_address, header, rate_limit

limiter = AsyncLimiter(
    plans=[
        Plan("gold", TokenBucket(capacity=5, per_second=5)),
        Plan("visitors", TokenBucket(capacity=5, per_second=5)),
    ]
)


@get("/api/resource")
@rate_limit("gold", key=header("X-API-Key"))
async def resource() -> dict[str, str]:
    return {"resource": "here you are"}


@get("/public")
async def public() -> dict[str, str]:
    return {"hello": "visitor"}


app = Litestar(
    [resource, public],
    plugins=[RateLimitPlugin(limiter, defaults=[Limit("visitors", key=client_address())])],
)

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    uvicorn.run(app, port=port, log_level="warning", proxy_headers=False)
