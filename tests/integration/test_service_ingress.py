"""The service's own limits: a caller with too many requests or wrong tokens gets 429; others do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from paceline.errors import ConfigurationError
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.server.wiring import ingress
from paceline.testing import eventually
from paceline.testing.servers.redis import RedisServer

API, ADMIN = "api-token-of-the-test", "admin-token-of-the-test"
SLOW = 0.001
"""Tokens a second: next to none while a test runs."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path / 'ingress.db'}")


def with_(settings: Settings, **changes: Any) -> Settings:
    return Settings(**({"database_url": settings.database_url} | changes))


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[FastAPI]:
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield app


def client(app: FastAPI, address: str = "192.0.2.1", **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(address, 50_000))
    return httpx.AsyncClient(transport=transport, base_url="http://paceline", headers=headers)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def metric(app: FastAPI, name: str) -> float:
    async with client(app, "192.0.2.200") as http:
        shown = (await http.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in shown.splitlines() if line.startswith(name))


async def test_a_caller_beyond_its_limit_gets_retry_after(settings: Settings) -> None:
    limited = with_(settings, ingress={"per_second": SLOW, "burst": 3})
    async with running(limited) as app, client(app) as http, client(app, "192.0.2.2") as other:
        answers = [await http.get("/api/v1/slots/nobody") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [404, 404, 404, 429, 429]
        refused = answers[-1]
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["ratelimit-policy"].startswith('"ingress";q=3')
        assert refused.headers["ratelimit"].startswith('"ingress";r=0')
        assert 1 <= int(refused.headers["retry-after"]) <= 1000
        assert refused.json()["violated-policies"] == ["ingress"]
        assert "retry-after" not in answers[0].headers
        assert (await other.get("/api/v1/slots/nobody")).status_code == 404
        assert await metric(app, 'ingress_decisions_total{outcome="DENIED",plan="ingress"}') == 2


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/q/health/ready", "/metrics", "/q/metrics"])
async def test_health_and_metrics_are_never_refused(settings: Settings, path: str) -> None:
    async with running(with_(settings, ingress={"per_second": SLOW, "burst": 1})) as app, client(app) as http:
        assert (await http.get("/openapi.json")).status_code == 200
        assert (await http.get("/openapi.json")).status_code == 429
        assert [(await http.get(path)).status_code for _ in range(5)] == [200] * 5


async def test_tokens_are_counted_apart_and_addresses_do_not_matter_to_them(settings: Settings) -> None:
    limited = with_(settings, api_token=API, admin_token=ADMIN, ingress={"per_second": SLOW, "burst": 2})
    async with running(limited) as app, client(app) as here, client(app, "192.0.2.2") as there:
        assert (await here.get("/api/v1/slots/x", headers=bearer(API))).status_code == 404
        assert (await there.get("/api/v1/slots/x", headers=bearer(API))).status_code == 404
        assert (await there.get("/api/v1/slots/x", headers=bearer(API))).status_code == 429
        assert (await there.get("/api/v1/slots/x", headers=bearer(ADMIN))).status_code == 404
        # A refused change is not made and leaves no audit row.
        plan = {"algorithm": "token_bucket", "capacity": 1, "perSecond": 1}
        assert (await there.put("/admin/plans/p", json=plan, headers=bearer(ADMIN))).status_code == 200
        assert (await there.put("/admin/plans/q", json=plan, headers=bearer(ADMIN))).status_code == 429
        entries = await app.state.services.audit.recent(10)
        assert [entry.path for _, entry in entries] == ["/admin/plans/p"]


async def test_a_refused_body_is_never_read(settings: Settings) -> None:
    async with running(with_(settings, ingress={"per_second": SLOW, "burst": 1})) as app:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            raise AssertionError("the body was read")

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/slots/batch",
            "query_string": b"",
            "headers": [(b"transfer-encoding", b"chunked"), (b"content-type", b"application/x-ndjson")],
            "client": ("192.0.2.9", 1),
        }
        async with client(app, "192.0.2.9") as http:
            await http.get("/openapi.json")
        await app(scope, receive, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 429
        assert (b"connection", b"close") in sent[0]["headers"]


async def test_guessing_tokens_is_slowed_down_for_the_guesser_only(settings: Settings) -> None:
    limited = with_(settings, api_token=API, admin_token=ADMIN, ingress={"failures_per_minute": 5})
    async with running(limited) as app, client(app) as http, client(app, "192.0.2.2") as other:
        assert (await http.get("/api/v1/slots/x", headers=bearer(API))).status_code == 404
        answers = [await http.get("/admin/plans", headers=bearer(f"guess-{n}")) for n in range(8)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        assert answers[-1].json()["violated-policies"] == ["ingress-failures"]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 12
        # A valid caller is served: one seen before at this address, a new one, and one from another address.
        assert (await http.get("/api/v1/slots/x", headers=bearer(API))).status_code == 404
        assert (await http.get("/admin/plans", headers=bearer(ADMIN))).status_code == 200
        assert (await other.get("/admin/plans", headers=bearer(ADMIN))).status_code == 200
        assert await metric(app, 'ingress_decisions_total{outcome="DENIED",plan="ingress-failures"}') == 3


async def test_a_short_token_is_not_believed_from_an_address_that_guesses(settings: Settings) -> None:
    """Only a service on the loopback has one; guessing it must be slowed down."""
    limited = with_(settings, api_token=API, admin_token="word", ingress={"failures_per_minute": 5})
    async with running(limited) as app, client(app) as http, client(app, "192.0.2.2") as other:
        answers = [await http.get("/admin/plans", headers=bearer(f"guess-{n}")) for n in range(6)]
        right = await http.get("/admin/plans", headers=bearer("word"))
        assert right.status_code == 429
        assert right.json()["detail"] == answers[-1].json()["detail"]
        assert (await other.get("/admin/plans", headers=bearer("word"))).status_code == 200


async def test_neighbours_in_one_ipv6_network_are_one_caller(settings: Settings) -> None:
    async with AsyncExitStack() as opened:
        app = await opened.enter_async_context(running(with_(settings, ingress={"per_second": SLOW, "burst": 1})))
        statuses = []
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1"):
            http = await opened.enter_async_context(client(app, address))
            statuses.append((await http.get("/api/v1/slots/x")).status_code)
        assert statuses == [404, 429, 404, 404, 429]


async def test_processes_share_the_limit_through_redis_and_its_outage_lets_everybody_pass(
    settings: Settings, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "TIMEOUT_SECONDS", 30)  # on a busy machine a slow answer would let one more pass
    limited = with_(
        settings, redis_url=own_redis.url, ingress={"per_second": SLOW, "burst": 10}, limits={"store": "memory"}
    )
    async with running(limited) as one, running(limited) as two, client(one) as first, client(two) as second:
        statuses = []
        for _ in range(10):
            statuses.append((await first.get("/api/v1/slots/x")).status_code)
            statuses.append((await second.get("/api/v1/slots/x")).status_code)
        assert statuses.count(404) == 10
        own_redis.kill()

        async def passes() -> bool:
            return (await first.get("/api/v1/slots/x")).status_code == 404

        await eventually(passes, within=10)
        assert [(await first.get("/api/v1/slots/x")).status_code for _ in range(20)] == [404] * 20
        assert await metric(one, "ingress_store_failures_total") >= 1


async def test_a_redis_that_refuses_us_or_is_away_lets_everybody_pass(
    settings: Settings, own_redis: RedisServer
) -> None:
    limits = {"per_second": SLOW, "burst": 1, "failures_per_minute": 1}
    limited = with_(
        settings,
        redis_url=f"redis://nobody:wrong@{own_redis.address}",
        admin_token=ADMIN,
        ingress=limits,
        limits={"store": "memory"},
    )
    async with running(limited) as app, client(app) as http:

        async def goes_on() -> None:
            for _ in range(5):
                assert (await http.get("/admin/plans", headers=bearer(ADMIN))).status_code == 200
                assert (await http.get("/admin/plans", headers=bearer("wrong"))).status_code == 401
                assert (await http.post("/console/session", json={"token": ADMIN})).status_code == 200
                http.cookies.clear()

        await goes_on()
        own_redis.kill()
        await goes_on()


async def test_nothing_is_limited_unless_asked_for(settings: Settings) -> None:
    async with running(settings) as app, client(app) as http:
        for _ in range(50):
            assert (await http.get("/api/v1/slots/x")).status_code == 404
        assert await metric(app, "ingress_decisions_total") == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PACELINE_INGRESS_PER_SECOND", "0"),
        ("PACELINE_INGRESS_PER_SECOND", "many"),
        ("PACELINE_INGRESS_BURST", "0"),
        ("PACELINE_INGRESS_FAILURES_PER_MINUTE", "-1"),
        ("PACELINE_HTTP_TRUSTED_PROXIES", "localhost"),
        ("PACELINE_HTTP_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("PACELINE_HTTP_TRUSTED_PROXIES", "unix"),
    ],
)
def test_a_wrong_limit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=variable):
        Settings.load()
