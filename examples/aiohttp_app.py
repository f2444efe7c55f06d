"""An aiohttp application whose handlers are limited: one by its own limit, the others by default.

Run it:  python examples/aiohttp_app.py
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

from __future__ import annotations

import sys

from aiohttp import web

from paceline import AsyncLimiter, Plan, TokenBucket
from paceline.integrations.aiohttp import Limit, client_address, header, install, rate_limit

limiter = AsyncLimiter(
    plans=[
        Plan("gold", TokenBucket(capacity=5, per_second=5)),
        Plan("visitors", TokenBucket(capacity=5, per_second=5)),
    ]
)
routes = web.RouteTableDef()


@routes.get("/api/resource")
@rate_limit("gold", key=header("X-API-Key"))
async def resource(request: web.Request) -> web.Response:
    return web.json_response({"resource": "here you are"})


@routes.get("/public")
async def public(request: web.Request) -> web.Response:
    return web.json_response({"hello": "visitor"})


app = web.Application()
app.add_routes(routes)
install(app, limiter, defaults=[Limit("visitors", key=client_address())])

if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    web.run_app(app, host="127.0.0.1", port=port, print=None)
