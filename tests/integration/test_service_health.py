"""`/health/ready` names what is down, with each server really stopped, within a timeout and without secrets."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
from fastapi import FastAPI

from paceline.errors import StoreUnavailable
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.testing import eventually
from paceline.testing.servers.kafka import KafkaServer
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.server import Server
from paceline.testing.servers.temporal import TemporalServer

SECRET = "s3cret-of-the-test"


@asynccontextmanager
async def service(**settings: Any) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    app = create_app(Settings(**settings))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as http,
    ):
        yield app, http


async def states(http: httpx.AsyncClient) -> dict[str, str]:
    answer = await http.get("/health/ready")
    body = answer.json()
    assert (answer.status_code == 503) == (body["status"] == "DOWN")
    assert SECRET not in answer.text
    assert "127.0.0.1" not in answer.text
    return {"": body["status"]} | {check["name"]: check["status"] for check in body["checks"]}


async def goes_and_comes(http: httpx.AsyncClient, server: Server, name: str, meanwhile: str) -> None:
    """Stopped and frozen, `server` is named; back again, all is well."""

    async def is_(state: str, overall: str) -> bool:
        return {"": overall, name: state}.items() <= (await states(http)).items()

    await eventually(lambda: is_("UP", "UP"))
    await asyncio.to_thread(server.kill)
    await eventually(lambda: is_("DOWN", meanwhile))
    assert (await http.get("/health/live")).status_code == 200
    await asyncio.to_thread(server.start)
    await eventually(lambda: is_("UP", "UP"))
    await asyncio.to_thread(server.pause)
    try:
        async with asyncio.timeout(30):
            await eventually(lambda: is_("DOWN", meanwhile))
    finally:
        await asyncio.to_thread(server.resume)
    await eventually(lambda: is_("UP", "UP"))


async def reason_is(http: httpx.AsyncClient, status: str, reason: str | None) -> bool:
    """Whether the database has this status, and if it is DOWN, this word for it."""
    checks = {check["name"]: check for check in (await http.get("/health/ready")).json()["checks"]}
    return checks["database"]["status"] == status and (checks["database"].get("data") or {}).get("reason") == reason


async def test_a_database_that_an_operator_makes_read_only_is_down_with_that_word(own_postgres: PostgresServer) -> None:
    async with service(database_url=own_postgres.url) as (_, http):
        await eventually(lambda: reason_is(http, "UP", None))
        with psycopg.connect(own_postgres.url, autocommit=True) as operator:
            operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            operator.execute("SELECT pg_reload_conf()")
        await eventually(lambda: reason_is(http, "DOWN", "read-only"), within=30)
        with psycopg.connect(own_postgres.url, autocommit=True) as operator:
            operator.execute("SET default_transaction_read_only = off")
            operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
            operator.execute("SELECT pg_reload_conf()")
        await eventually(lambda: reason_is(http, "UP", None), within=30)


async def test_a_database_whose_writes_do_not_end_is_down_as_lagging(own_postgres: PostgresServer) -> None:
    async with service(database_url=own_postgres.url) as (_, http):
        await eventually(lambda: reason_is(http, "UP", None))
        with psycopg.connect(own_postgres.url, autocommit=True) as operator:
            # Each commit waits for a standby that is not there.
            operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'elsewhere'")
            operator.execute("SELECT pg_reload_conf()")
        await eventually(lambda: reason_is(http, "DOWN", "lagging"), within=30)
        with psycopg.connect(own_postgres.url, autocommit=True) as operator:
            operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            operator.execute("SELECT pg_reload_conf()")
        await eventually(lambda: reason_is(http, "UP", None), within=30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_database_on_a_full_disk_is_down_with_that_word(small_disk: Path) -> None:
    async with service(database_url=f"sqlite:///{small_disk / 'x.db'}") as (_, http):
        await eventually(lambda: reason_is(http, "UP", None))
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        await eventually(lambda: reason_is(http, "DOWN", "full"), within=30)
        filler.unlink()
        await eventually(lambda: reason_is(http, "UP", None), within=30)


async def test_the_database(own_postgres: PostgresServer) -> None:
    url = own_postgres.url.replace("postgres@", f"postgres:{SECRET}@")
    async with service(database_url=url) as (_, http):
        await goes_and_comes(http, own_postgres, "database", "DOWN")


async def test_redis_is_missed_but_not_needed(own_redis: RedisServer, tmp_path: Path) -> None:
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "guarded", "on", f">{SECRET}", "~*", "&*", "+@all")
        client.config_rewrite()
    url = f"redis://guarded:{SECRET}@{own_redis.address}"
    async with service(database_url=f"sqlite:///{tmp_path / 'x.db'}", redis_url=url) as (_, http):
        await goes_and_comes(http, own_redis, "redis", "DEGRADED")


async def test_kafka_is_missed_but_not_needed(own_kafka: KafkaServer, tmp_path: Path) -> None:
    async with service(database_url=f"sqlite:///{tmp_path / 'x.db'}", kafka_bootstrap=own_kafka.address) as (_, http):
        await goes_and_comes(http, own_kafka, "kafka", "DEGRADED")


async def test_temporal_is_missed_but_not_needed(own_temporal: TemporalServer, tmp_path: Path) -> None:
    where = {"database_url": f"sqlite:///{tmp_path / 'x.db'}", "temporal_address": own_temporal.address}
    async with service(**where) as (_, http):
        await goes_and_comes(http, own_temporal, "temporal", "DEGRADED")
    async with service(**where, temporal_namespace="nowhere") as (_, http):
        assert (await states(http))["temporal"] == "DOWN"


async def test_slots_and_limits_go_on_without_kafka_and_temporal(tmp_path: Path) -> None:
    nowhere = {"kafka_bootstrap": "127.0.0.1:1", "temporal_address": "127.0.0.1:1"}
    async with service(database_url=f"sqlite:///{tmp_path / 'x.db'}", **nowhere) as (app, http):
        plan = {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1}
        slot = {"eventId": "e", "requestedTime": "2030-01-01T00:00:00Z"}
        assert (await http.post("/api/v1/slots", json=slot)).status_code == 200
        assert (await http.put("/admin/plans/g", json=plan)).status_code == 200
        assert (await http.post("/api/v1/limits/acquire", json={"key": "k", "plans": ["g"]})).status_code == 200
        dependencies = {"database": "UP", "kafka": "DOWN", "temporal": "DOWN", "workers": "UP"}
        assert await states(http) == {"": "DEGRADED", **dependencies}

        async def away() -> None:
            raise StoreUnavailable("away")

        app.state.services.probes["database"] = away
        assert (await states(http))[""] == "DOWN"


async def test_a_server_is_asked_once_however_many_ask(tmp_path: Path) -> None:
    async with service(database_url=f"sqlite:///{tmp_path / 'x.db'}") as (app, http):
        calls = 0
        answer = asyncio.Event()

        async def slow() -> None:
            nonlocal calls
            calls += 1
            await answer.wait()

        app.state.services.probes["slow"] = slow
        waiting = [asyncio.create_task(http.get("/health/ready")) for _ in range(20)]
        await eventually(lambda: calls)
        waiting[0].cancel()
        answer.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting[1:])} == {200}
        assert calls == 1
        await http.get("/health/ready")
        assert calls == 2
