"""A FastAPI service whose endpoints are limited.

Run it:  python examples/fastapi_app.py
Try it:  curl -i -H "X-API-Key: abc" http://127.0.0.1:8000/api/resource
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import Depends, FastAPI

from paceline import AsyncLimiter, FixedWindow, Plan, TokenBucket
from paceline.integrations.fastapi import client_address, header, install, limited, rate_limit

limiter = AsyncLimiter(
    os.environ.get("PACELINE_REDIS_URL", "memory://"),
    plans=[
        *(Plan(name, TokenBucket(capacity=5, per_second=5)) for name in ("gold", "visitors")),
        Plan("daily", FixedWindow(limit=1000, window="P1D")),
    ],
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await limiter.close()


app = FastAPI(lifespan=lifespan)
install(app, limiter)


@app.get("/api/resource")
@rate_limit(["gold", "daily"], key=header("X-API-Key"))
async def resource() -> dict[str, str]:
    return {"resource": "here you are"}


@app.get("/api/report")
@rate_limit("gold", key=header("X-API-Key"), cost=3)
def report(title: str = "untitled") -> dict[str, str]:  # not async, and at a higher cost
    return {"report": title}


@app.get("/public", dependencies=[Depends(limited("visitors", key=client_address()))])
async def public() -> str:
    return "hello"


if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8000
    # Else uvicorn trusts X-Forwarded-For from this machine, which any client can forge.
    uvicorn.run(app, port=port, log_level="warning", proxy_headers=False)
