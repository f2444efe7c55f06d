"""The ASGI middleware: which requests its rules hold, and what it sends."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan
from paceline.errors import ConfigurationError
from paceline.integrations.asgi import PathRule, RateLimitMiddleware, client_address, everyone, header

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H")), Plan("large", FixedWindow(limit=5, window="P1D"))]


async def greet(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"hello"})
    else:
        await send({"type": "lifespan.startup.complete"})


def talk_to(*rules: PathRule, **options: Any) -> httpx.AsyncClient:
    app = RateLimitMiddleware(greet, AsyncLimiter(plans=PLANS), rules, **options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_all_rules_that_match_are_one_decision() -> None:
    async with talk_to(
        PathRule("/api/*", "large", key=client_address()), PathRule("/api/dear", "small", key=client_address())
    ) as client:
        first = await client.get("/api/dear")
        assert first.headers["X-Own"] == "1"
        assert first.headers["RateLimit"] == '"large";r=4;t=86400, "small";r=0;t=3600'
        assert (await client.get("/api/dear")).status_code == 429
        assert (await client.get("/api/cheap")).headers["RateLimit"] == '"large";r=3;t=86400'
        assert "RateLimit" not in (await client.get("/else")).headers


@pytest.mark.parametrize(
    ("pattern", "methods", "method", "path", "held"),
    [
        ("/a", None, "GET", "/a", True),
        ("/a", None, "GET", "/a/b", False),
        ("/a", None, "GET", "/ab", False),
        ("/a/*", None, "DELETE", "/a/b/c", True),
        ("/a/*", None, "GET", "/a", False),
        ("*", None, "PUT", "/anything", True),
        ("/a.c", None, "GET", "/abc", False),
        ("/a", ["get"], "GET", "/a", True),
        ("/a", ["GET"], "HEAD", "/a", True),
        ("/a", ["POST"], "GET", "/a", False),
    ],
)
async def test_a_rule_holds_for_its_path_and_methods(
    pattern: str, methods: list[str] | None, method: str, path: str, held: bool
) -> None:
    async with talk_to(PathRule(pattern, "large", key=everyone("all"), methods=methods)) as client:
        assert ("RateLimit" in (await client.request(method, path)).headers) is held


async def test_functions_are_given_the_scope() -> None:
    rule = PathRule("/*", "large", key=lambda scope: scope["query_string"].decode(), cost=lambda scope: 2)
    async with talk_to(rule) as client:
        assert (await client.get("/?ada")).headers["RateLimit"] == '"large";r=3;t=86400'
        assert (await client.get("/")).status_code == 400


async def test_a_missing_key_never_reaches_the_application() -> None:
    async with talk_to(PathRule("/*", "large", key=header("X-API-Key"))) as client:
        refused = await client.get("/")
    assert refused.status_code == 400
    assert "X-Own" not in refused.headers
    assert refused.json()["field"] == "X-API-Key"


async def test_a_repeated_header_is_one_key() -> None:
    async with talk_to(PathRule("/*", "small", key=header("X-API-Key"))) as client:
        twice = [("X-API-Key", "a"), ("X-API-Key", "b")]
        assert (await client.get("/", headers=twice)).status_code == 200
        assert (await client.get("/", headers=twice)).status_code == 429
        assert (await client.get("/", headers={"X-API-Key": "a"})).status_code == 200


async def test_websockets_and_lifespan() -> None:
    app = RateLimitMiddleware(greet, Limiter(plans=PLANS), [PathRule("/ws", "small", key=everyone("all"))])
    assert [message["type"] for message in await sent(app, type="lifespan")] == ["lifespan.startup.complete"]
    (accepted,) = await sent(app, type="websocket")
    assert (b"ratelimit", b'"small";r=0;t=3600') in accepted["headers"]
    (closed,) = await sent(app, type="websocket")
    assert closed == {"type": "websocket.close", "code": 1013, "reason": "rate limit exceeded"}
    start, body = await sent(app, type="websocket", extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert (b"content-length", str(len(body["body"])).encode()) in start["headers"]


async def sent(app: Any, **scope: Any) -> list[dict[str, Any]]:
    """What an app sends for a scope."""
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await app({"path": "/ws", "headers": [], "client": None, **scope}, receive, send)
    return messages


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: PathRule("api", "p", key=everyone("a")), "pattern"),
        (lambda: PathRule("/", [], key=everyone("a")), "plans"),
        (lambda: PathRule("/", "p", key=everyone("a"), methods="GET"), "methods"),
        (lambda: PathRule("/", "p", key="X-API-Key"), "key"),  # type: ignore[arg-type]
        (lambda: PathRule("/", "p", key=everyone("a"), cost=0), "cost"),
        (lambda: PathRule("/", "p", key=everyone("a"), cost=True), "cost"),
        (lambda: RateLimitMiddleware(greet, None, []), "limiter"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_rule_is_refused_when_it_is_made(wrong: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        wrong()


async def test_a_key_is_asked_for_once_a_request_however_it_is_decided() -> None:
    paths: list[str] = []

    def named(scope: Any) -> str:
        paths.append(scope["path"])
        return "k"

    async with talk_to(PathRule("*", "large", key=named)) as client:
        limits = [(await client.get("/a")).headers["RateLimit"] for _ in range(5)]
        assert (await client.get("/a")).status_code == 429
    assert limits == [f'"large";r={left};t=86400' for left in (4, 3, 2, 1, 0)]
    assert len(paths) == 6


async def test_keys_that_a_cluster_keeps_apart_are_named_and_nothing_is_asked() -> None:
    plans, nobody = [Plan("wide", FixedWindow(5, "P1D")), *PLANS], "redis+cluster://127.0.0.1:1"
    rules = [PathRule("/*", "wide", key=lambda _: "a"), PathRule("/x", "small", key=lambda _: "b")]
    async with AsyncLimiter(nobody, plans=plans, on_error="open") as limiter:
        app = httpx.ASGITransport(RateLimitMiddleware(greet, limiter, rules))
        async with httpx.AsyncClient(transport=app, base_url="http://test") as client:
            assert (await client.get("/y")).status_code == 200
            with pytest.raises(ConfigurationError, match="'a' and 'b'"):
                await client.get("/x")
