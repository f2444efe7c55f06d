"""A Starlette application whose endpoints are limited: one by its own limit, the others by default.

Run it:  python examples/starlette_app.py
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline import AsyncLimiter, Plan, TokenBucket
from paceline.integrations.starlette import Limit, client_address, header, install, rate_limit

limiter = AsyncLimiter(
    plans=[
        Plan("gold", TokenBucket(capacity=5, per_second=5)),
        Plan("visitors", TokenBucket(capacity=5, per_second=5)),
    ]
)


@rate_limit("gold", key=header("X-API-Key"))
async def resource(request: Request) -> Response:
    return JSONResponse({"resource": "here you are"})


async def public(request: Request) -> Response:
    return JSONResponse({"hello": "visitor"})


app = Starlette(routes=[Route("/api/resource", resource), Route("/public", public)])
install(app, limiter, defaults=[Limit("visitors", key=client_address())])

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    uvicorn.run(app, port=port, log_level="warning", proxy_headers=False)
