"""A route that a client may call three times in ten seconds, with the fields that tell the client so.

Run it:  python examples/limit_a_route.py          (it calls itself: no server, no port)

    200 "gold";r=2;t=10
    200 "gold";r=1;t=10
    200 "gold";r=0;t=10
    429 "gold";r=0;t=10, again in 10 s
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.testclient import TestClient

from paceline import AsyncLimiter, Plan
from paceline.integrations.fastapi import header, install, rate_limit

app = FastAPI()
install(app, AsyncLimiter(plans=[Plan("gold", "3/10 seconds")]))


@app.get("/orders")
@rate_limit("gold", key=header("X-API-Key"))
async def orders() -> list[str]:
    return ["order-1"]


if __name__ == "__main__":
    client = TestClient(app, headers={"X-API-Key": "abc"})
    for _ in range(4):
        answer = client.get("/orders")
        wait = f", again in {answer.headers['Retry-After']} s" if "Retry-After" in answer.headers else ""
        print(answer.status_code, answer.headers["RateLimit"] + wait)
