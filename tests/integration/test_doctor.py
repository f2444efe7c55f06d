"""`paceline doctor` checks every server in its own protocol: healthy, degraded, down, and with the wrong
credentials."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from sqlalchemy import make_url

from paceline.extras import MODULES
from paceline.server.access.authenticator import create_token
from paceline.server.cli import app
from paceline.server.cli.doctor import _examine, finding, servers
from paceline.server.cli.doctor.finding import Finding
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from paceline.server.wiring.database import migrate_up
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.redis_cluster import RedisClusterAddress
from paceline.testing.servers.redis_sentinel import RedisSentinel
from paceline_sms.service.wiring.notifications import open_notifications
from tests.acceptance.collector import collector
from tests.acceptance.service import run

NOWHERE = "127.0.0.1:1"
SECRET = "pa55-w0rd"


async def examined(tmp_path: Path, **settings: Any) -> dict[str, Finding]:
    values = {"database_url": f"sqlite:///{tmp_path / 'doctor.db'}"} | settings
    return {check.name: check for check in await _examine(Settings(**values))}


def made_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(finding, "MAX_SECONDS", 1.5)


async def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    found = await examined(tmp_path)
    assert all(check.ok for check in found.values())
    assert "will be made" in found["database"].summary
    assert "GiB free" in found["disk"].summary
    assert not made_in(tmp_path)
    lost = await examined(tmp_path, database_url=f"sqlite:///{tmp_path}/no/such/folder.db")
    assert not lost["database"].ok
    assert str(tmp_path / "no/such") in str(lost["database"].advice)


@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
async def test_a_database_reports_its_version_schema_and_clock(tmp_path: Path, database_url: str) -> None:
    if "postgres" in database_url:
        found = await examined(tmp_path, database_url=database_url)
        assert found["database"].ok
        assert found["schema"] == Finding("schema", True, "empty: the first service, worker or queue makes it")
        assert all(finding.ok for finding in found.values()), found
    await migrate_up(database_url)
    found = await examined(tmp_path, database_url=database_url)
    assert found["database"].ok
    assert found["schema"].ok
    assert found["clock"].ok
    assert any(letter.isdigit() for letter in found["database"].summary.rpartition(" ")[2])


async def test_a_database_that_takes_no_writes_fails_the_check(tmp_path: Path, postgres_url: str) -> None:
    assert (await examined(tmp_path, database_url=postgres_url))["writes"].ok
    name = sql.Identifier(make_url(postgres_url).database or "")
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    found = await examined(tmp_path, database_url=postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute("SET default_transaction_read_only = off")
        operator.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
    assert found["database"].ok
    assert not found["writes"].ok
    assert "default_transaction_read_only" in str(found["writes"].advice)


async def test_tokens_of_the_database_make_it_safe_to_listen_anywhere(tmp_path: Path) -> None:
    found = await examined(tmp_path, host="0.0.0.0")
    assert not found["listening"].ok
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'doctor.db'}")
    async with open_access_store(settings) as store:
        await create_token(store, "somebody", ["read"])
    found = await examined(tmp_path, host="0.0.0.0")
    assert found["listening"].ok
    assert "1 of the database" in found["listening"].summary
    short = await examined(tmp_path, api_token="short")
    assert short["listening"].ok
    assert "guessed" in str(short["listening"].advice)


async def test_the_wrong_password_of_a_database(tmp_path: Path, own_postgres: PostgresServer) -> None:
    hba = own_postgres.directory / "data" / "pg_hba.conf"
    hba.write_text("host all guarded all scram-sha-256\n" + hba.read_text())
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}' SUPERUSER")
        connection.execute("SELECT pg_reload_conf()")
    host = own_postgres.address
    right = await examined(tmp_path, database_url=f"postgresql://guarded:{SECRET}@{host}/postgres")
    assert right["database"].ok
    wrong = await examined(tmp_path, database_url=f"postgresql://guarded:{SECRET}x@{host}/postgres")
    assert not wrong["database"].ok
    assert "authentication failed" in wrong["database"].summary
    lost = await examined(tmp_path, database_url=f"postgresql://guarded:{SECRET}@{host}/nowhere")
    assert "does not exist" in lost["database"].summary
    own_postgres.kill()
    gone = await examined(tmp_path, database_url=f"postgresql://guarded:{SECRET}@{host}/postgres")
    assert not gone["database"].ok
    assert SECRET not in str([right, wrong, lost, gone])


async def test_a_redis_reports_its_state(tmp_path: Path, own_redis: RedisServer) -> None:
    found = await examined(tmp_path, redis_url=own_redis.url)
    assert found["redis"].ok
    assert "Redis 6" in found["redis"].summary
    assert "master" in found["redis"].summary
    assert found["redis clock"].ok
    assert "redis memory" not in found
    with own_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.execute_command("ACL", "SETUSER", "mute", "on", f">{SECRET}", "~*", "+@all", "-@scripting")
    found = await examined(tmp_path, redis_url=own_redis.url)
    assert found["redis memory"].ok
    assert "noeviction" in str(found["redis memory"].advice)
    mute = await examined(tmp_path, redis_url=f"redis://mute:{SECRET}@{own_redis.address}")
    assert not mute["redis scripts"].ok
    assert "@scripting" in str(mute["redis scripts"].advice)
    with own_redis.client() as client:
        client.config_set("requirepass", SECRET)
    for url in (own_redis.url, f"redis://:{SECRET}x@{own_redis.address}"):
        refused = await examined(tmp_path, redis_url=url)
        assert not refused["redis"].ok
        assert "password" in str(refused["redis"].advice)
        assert SECRET not in str(refused)
    assert (await examined(tmp_path, redis_url=f"redis://:{SECRET}@{own_redis.address}"))["redis"].ok
    own_redis.kill()
    assert not (await examined(tmp_path, redis_url=own_redis.url))["redis"].ok


async def test_a_redis_of_several_servers(
    tmp_path: Path, redis_cluster: RedisClusterAddress, redis_sentinel: RedisSentinel
) -> None:
    settings = Settings(redis_url=redis_cluster.url)
    masters = [check for check in await servers.redis(settings) if check.name == "redis"]
    assert len(masters) == 3
    assert all(master.ok for master in masters)
    found = await examined(tmp_path, redis_url=redis_sentinel.url)
    assert found["redis"].ok
    assert "master with 1 replicas" in found["redis"].summary
    unknown = await examined(tmp_path, redis_url=redis_sentinel.url.replace("mymaster", "nobody"))
    assert not unknown["redis"].ok
    replica_address = next(member.address for member in redis_sentinel.members() if type(member).__name__ == "Replica")
    replica = await examined(tmp_path, redis_url=f"redis://{replica_address}")
    assert not replica["redis"].ok
    assert "redis+sentinel" in str(replica["redis"].advice)


async def test_kafka_reports_its_brokers_and_topics(tmp_path: Path, kafka_bootstrap: str) -> None:
    names = {"topic": "doctor-sms", "events_topic": "doctor-events"}
    found = await examined(tmp_path, kafka_bootstrap=kafka_bootstrap, sms=names)
    assert found["kafka"].ok
    assert "1 brokers" in found["kafka"].summary
    assert "doctor-sms is made when it is first used" in found["kafka topics"].summary
    async with open_notifications(
        Settings.load(
            database_url=f"sqlite:///{tmp_path / 'doctor.db'}",
            kafka_bootstrap=kafka_bootstrap,
            sms=names,
        )
    ) as gateway:
        await gateway.intake.configure(1, 5, 5)
        await gateway.intake.send(1, "hello")
    found = await examined(tmp_path, kafka_bootstrap=kafka_bootstrap, sms=names)
    assert "doctor-sms has 4 partitions" in found["kafka topics"].summary


async def test_temporal_reports_its_version_namespace_and_workers(tmp_path: Path, temporal_address: str) -> None:
    found = await examined(tmp_path, temporal_address=temporal_address)
    assert found["temporal"].ok
    assert "namespace default" in found["temporal"].summary
    assert "payment-exec-task-queue" in found["temporal workers"].summary
    lost = await examined(tmp_path, temporal_address=temporal_address, temporal_namespace="nowhere")
    assert not lost["temporal"].ok
    assert "namespace create --namespace nowhere" in str(lost["temporal"].advice)


@contextmanager
def provider(requests: list[str]) -> Iterator[str]:
    class Provider(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.send_response(404)
            self.end_headers()

        do_POST = do_GET = do_HEAD  # noqa: N815 - the names are the library's

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_providers_are_only_asked_whether_they_are_there(tmp_path: Path) -> None:
    requests: list[str] = []
    with provider(requests) as address:
        found = await examined(
            tmp_path,
            payments={"downstream_url": f"http://{address}/bank"},
            sms={"webhook_url": f"http://user:{SECRET}@{address}/hook/{SECRET}?token={SECRET}"},
        )
    assert found["downstream"].ok
    assert found["sms provider"].ok
    assert requests == ["HEAD /", "HEAD /"]
    assert SECRET not in str(found)


async def test_silent_servers_are_given_up_on(tmp_path: Path, impatient: None) -> None:
    """They take connections and never answer. All are checked at once, and none is waited for longer than allowed."""
    with socket.create_server((("127.0.0.1"), 0), backlog=100) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with asyncio.timeout(60):
            found = await examined(
                tmp_path,
                database_url=f"postgresql://somebody:{SECRET}@{address}/nothing",
                redis_url=f"redis://:{SECRET}@{address}",
                kafka_bootstrap=address,
                temporal_address=address,
                temporal_api_key=SECRET,
                temporal_tls=False,
                payments={"downstream_url": f"http://{address}"},
                sms={"webhook_url": f"http://{SECRET}@{address}/?t={SECRET}"},
            )
    names = ("database", "redis", "kafka", "temporal", "downstream", "sms provider")
    assert [found[name].ok for name in names] == [False] * 6
    assert all(found[name].advice for name in names)
    assert SECRET not in str(found)


def test_the_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    well = CliRunner().invoke(app, ["doctor", "--json"])
    assert well.exit_code == 0
    assert all(check["ok"] for check in json.loads(well.output))
    monkeypatch.setenv("PACELINE_REDIS_URL", f"redis://:{SECRET}@{NOWHERE}")
    monkeypatch.setenv("PACELINE_KAFKA_BOOTSTRAP", NOWHERE)
    monkeypatch.setenv("PACELINE_TEMPORAL_ADDRESS", NOWHERE)
    monkeypatch.setattr(servers, "TIMEOUT_SECONDS", 0.5)
    unwell = CliRunner().invoke(app, ["doctor"])
    assert unwell.exit_code == 1
    for name in ("redis", "kafka", "temporal"):
        assert f"FAIL  {name}: " in unwell.output
    assert "check PACELINE_TEMPORAL_ADDRESS" in unwell.output
    assert SECRET not in unwell.output


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("empty_postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'doctor.db'}"


async def test_the_collector_of_traces_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await examined(tmp_path))["traces"] == Finding("traces", True, "off")
    assert (await examined(tmp_path, traces="console"))["traces"].summary == "written to standard error"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:{SECRET}@{NOWHERE}/otlp")
    away = (await examined(tmp_path, traces="otlp"))["traces"]
    assert (away.ok, away.summary) == (False, f"http://{NOWHERE}: can't be reached (ConnectError)")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in str(away.advice)
    with collector() as spans:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{spans.url}/v1/traces")
        found = (await examined(tmp_path, traces="otlp"))["traces"]
        assert found.ok
        assert found.summary.startswith(f"{spans.url} answers")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    missing = (await examined(tmp_path, traces="otlp"))["traces"]
    assert (missing.ok, missing.advice) == (False, "pip install 'paceline[traces]'")


MISTAKES = {
    "PACELINE_PAYMENTS_RULES": ("no-such.toml", "can't be read: No such file or directory"),
    "PACELINE_DISPATCH_DOMAINS": ("no_such_module:domain", "'no_such_module:domain' can't be loaded"),
    "PACELINE_PAYMENTS_DOWNSTREAM_TOKEN_FILE": ("no-such-token", "can't be read: No such file or directory"),
    "PACELINE_PAYMENTS_DOWNSTREAM_CLIENT_CERT": ("no-such.pem", "can't be read: No such file or directory"),
    "PACELINE_PAYMENTS_DOWNSTREAM_INQUIRY_PATH": ("/payments", "must hold {key}, as in /payments/{key}"),
    "PACELINE_SMS_PROVIDERS": ("mine=no_such_module:sms", "'no_such_module:sms' of mine can't be imported"),
}


@pytest.mark.parametrize("variable", MISTAKES)
def test_what_the_settings_name_is_loaded(tmp_path: Path, variable: str) -> None:
    """The doctor reports it, and the service exits at start with one line."""
    value, message = MISTAKES[variable]
    examined = run(tmp_path, "doctor", **{variable: value})
    assert examined.returncode == 1, examined.stderr
    (line,) = [line for line in examined.stdout.splitlines() if line.startswith("FAIL")]
    assert variable in line
    assert message in line
    served = run(tmp_path, "serve", "--port", "0", **{variable: value})
    assert served.returncode == 2
    assert served.stdout == ""
    (line,) = served.stderr.splitlines()
    assert line.startswith(f"paceline: {variable}: ")
    assert message in line


async def test_rules_and_item_types_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await examined(tmp_path)
    assert (found["payment rules"].summary, found["item types"].summary) == (
        "not configured: nothing is refused",
        "SMS, SMS_HIGH, PAYMENT",
    )
    rules = tmp_path / "rules.toml"
    rules.write_text('duplicates = "reject"\n')
    found = await examined(tmp_path, payments={"rules": str(rules)})
    assert found["payment rules"] == Finding("payment rules", True, str(rules))
    rules.write_text('duplicates = "perhaps"\n')
    found = await examined(tmp_path, payments={"rules": str(rules)})
    assert (found["payment rules"].ok, found["payment rules"].summary) == (
        False,
        "PACELINE_PAYMENTS_RULES: duplicates: must be allow or reject",
    )


@pytest.mark.parametrize("command", [["doctor"], ["serve", "--port", "0"]], ids=["doctor", "serve"])
def test_an_invalid_url_is_reported_in_one_line(tmp_path: Path, command: list[str]) -> None:
    ended = run(tmp_path, *command, PACELINE_SMS_WEBHOOK_URL=f"http://[bad/{SECRET}")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "paceline: PACELINE_SMS_WEBHOOK_URL: is no URL: its host is not valid\n"


EXTRAS = ("encryption", "grpc", "oidc")


async def test_extras_that_the_settings_need_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in (*EXTRAS, "payments"):
        for module in MODULES[extra]:
            monkeypatch.setitem(sys.modules, module, None)
    found = await examined(
        tmp_path,
        dispatch={"encryption_keys": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="},
        grpc={"port": 0},
        oidc={"issuer": f"http://{NOWHERE}", "client_id": "paceline", "scopes": {"ops": "admin"}},
        payments={"downstream_url": f"http://{NOWHERE}"},
    )
    assert found["packages"].summary.endswith("; what the settings need is not installed")
    assert found["packages"].advice == "pip install 'paceline[payments,encryption,grpc,oidc]'"
    assert {name: found[name].advice for name in EXTRAS} == {name: f"pip install 'paceline[{name}]'" for name in EXTRAS}
    assert found["downstream"].advice == "pip install 'paceline[payments]'"


async def test_keys_and_files_of_the_service_are_loaded(tmp_path: Path) -> None:
    found = await examined(
        tmp_path, dispatch={"encryption_keys": "short"}, grpc={"port": 0}, envoy={"config": str(tmp_path / "none.yaml")}
    )
    assert not found["encryption"].ok
    assert "none.yaml" in found["grpc"].summary
    assert not found["grpc"].ok
