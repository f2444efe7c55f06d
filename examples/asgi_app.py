"""A bare ASGI application behind middleware that limits it by path and method.

Run it:  python examples/asgi_app.py
Try it:  curl -i http://127.0.0.1:8000/api/anything
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from paceline import AsyncLimiter, Plan, TokenBucket
from paceline.integrations.asgi import PathRule, RateLimitMiddleware, client_address, composite, path


async def greet(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"hello\n"})


limiter = AsyncLimiter(plans=[Plan("gold", TokenBucket(capacity=5, per_second=5))])
app = RateLimitMiddleware(
    greet,
    limiter,
    rules=[PathRule("/api/*", "gold", key=composite(client_address(), path()), methods=["GET", "POST"])],
)

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    uvicorn.run(app, port=port, log_level="warning", lifespan="off", proxy_headers=False)
