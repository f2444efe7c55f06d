"""No secret is shown: not in a log of any form and level, an answer, a metric, nor in what a command prints.

One whole run per form of the log: a service on PostgreSQL and Redis with passwords, a provider whose URL is a secret,
a worker, commands; good calls and bad ones on every route, outages of both stores; then everything that was written is
searched for every secret that was used, also as URLs and HTTP write it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import psycopg
import pytest

from paceline.testing import eventually
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer
from tests.acceptance.service import Service, command, environment, run

# Signs that URLs must escape, so that both forms are searched for.
SECRETS = {
    "api token": "api~T0ken/0f+the=run",
    "admin token": "adm1n~T0ken/0f+the=run",
    "wrong token": "wr0ng~T0ken/0f+the=run",
    "database password": "d8base/P4ss+word",
    "wrong database password": "wr0ng-d8base/P4ss+word",
    "redis password": "r3dis/P4ss+word",
    "wrong redis password": "wr0ng-r3dis/P4ss+word",
    "provider user": "pr0vider/us3r+name",
    "provider password": "pr0vider/P4ss+word",
    "provider option": "pr0vider/t0ken+option",
    "provider path": "pr0viderPathT0ken",
    "bank password": "b4nk/P4ss+word",
    "bank token": "b4nk~T0ken/0f+the=run",
    "bank signature key": "b4nk~hm4c/k3y+0f=run",
    "bank header": "b4nk~H3ader/v4lue+0f=run",
    "temporal key": "t3mporal/k3y+of-the-run",
    "password with spaces": "sp4ced out\tP4ss word",
    "collector user": "c0llector/us3r",
    "collector password": "c0llector/P4ss+word",
    "collector path": "c0llectorPathT0ken",
    "collector option": "c0llector/t0ken+option",
    "collector header": "c0llector~H3ader+t0ken",
    "collector header, spoilt": "c0llector~Sp0ilt+t0ken",
}


def forms(secret: str) -> set[str]:
    """How a secret might be written."""
    plain = secret.encode()
    return {
        secret,
        quote(secret, safe=""),
        quote(secret),
        base64.b64encode(plain).decode().rstrip("="),
        base64.urlsafe_b64encode(plain).decode().rstrip("="),
        hashlib.sha256(plain).hexdigest(),
    }


class Shown:
    """Everything that a run has written, by place."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, str]] = []

    def add(self, where: str, text: str) -> None:
        self._parts.append((where, text))

    def answer(self, answer: httpx.Response) -> httpx.Response:
        headers_text = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
        self.add(f"answer to {answer.request.method} {answer.request.url.path}", f"{headers_text}\n{answer.text}")
        return answer

    def called(self, http: httpx.Client, method: str, url: str, **options: Any) -> int:
        """The status of a call, whose answer is kept; of a stream, which does not end, its first part."""
        with http.stream(method, url, **options) as answer:
            if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                self.add(f"stream of {url}", f"{answer.headers}\n{next(answer.iter_text())}")
            else:
                answer.read()
                self.answer(answer)
            return answer.status_code

    def command(self, ended: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
        self.add(f"output of {ended.args}", ended.stdout + ended.stderr)
        return ended

    def leaks(self, secrets: dict[str, str]) -> list[str]:
        found = []
        for where, text in self._parts:
            for name, secret in secrets.items():
                for form in forms(secret):
                    if form in text:
                        at = text.index(form)
                        found.append(f"{name} in {where}: {text[max(0, at - 200) : at + len(form) + 50]!r}")
        return found


@contextmanager
def provider() -> Iterator[tuple[str, list[str]]]:
    """Accepts every payment and refuses every message; returns what arrived."""
    messages: list[str] = []

    class Provider(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if b"messageId" in body:
                messages.append(self.path)
            self.send_response(429 if len(messages) % 2 else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", messages
        finally:
            server.shutdown()
            thread.join()


def with_password(server: PostgresServer) -> str:
    """Gives the database a user with a password; its URL."""
    hba = server.directory / "data" / "pg_hba.conf"
    hba.write_text("host all guarded all scram-sha-256\n" + hba.read_text())
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{SECRETS['database password']}'")
        connection.execute("SELECT pg_reload_conf()")
    return f"postgresql://guarded:{quoted('database password')}@{server.address}/postgres"


def quoted(name: str) -> str:
    return quote(SECRETS[name], safe="")


PARTY = {"name": "Ada", "iban": "DE89370400440532013000"}
BODIES: list[dict[str, Any]] = [
    {},
    {"eventId": "e-1", "requestedTime": "2027-01-01T00:00:00Z"},
    {"events": [{"eventId": "e-2", "requestedTime": "2027-01-01T00:00:00Z"}]},
    {"configName": "default", "maxPerWindow": 50, "windowSize": "PT4S"},
    {"algorithm": "token_bucket", "capacity": 5, "perSecond": 1},
    {"key": "somebody", "plans": ["x"]},
    {"userId": 7, "rateLimit": 1000, "timeWindow": 5},
    {"userId": 7, "message": "hello"},
    {
        "paymentId": "pay-1",
        "amount": "12.34",
        "currency": "EUR",
        "payer": PARTY,
        "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
        "executeAt": "2026-01-01T00:00:00Z",
    },
    {"enabled": True},
    {"ids": ["nobody"]},
]


def credentials() -> list[dict[str, str]]:
    wrong, right = SECRETS["wrong token"], SECRETS["admin token"]
    basic = base64.b64encode(f"user:{wrong}".encode()).decode()
    return [
        {},
        {"Authorization": f"Bearer {wrong}"},
        {"Authorization": f"Basic {basic}"},
        {"Authorization": f"{right}"},
        {"Authorization": f"Bearer{right}"},
        {"Authorization": f"Token {right}", "X-Api-Key": right},
        {"Authorization": f"Bearer {SECRETS['api token']}"},
        {"Authorization": f"Bearer {right}"},
    ]


def call_everything(http: httpx.Client, shown: Shown) -> set[int]:
    """Every route: each way to present a token, and every body with the right one."""
    statuses = set()
    ways = credentials()
    for path, operations in shown.answer(http.get("/openapi.json")).json()["paths"].items():
        for method, operation in operations.items():
            url = re.sub(r"{item_type}|{itemType}", "PAYMENT", path)
            url = re.sub(r"{[^}]*}", "x", url)
            bodies: list[dict[str, Any] | None] = list(BODIES) if "requestBody" in operation else [None]
            for headers in ways[:-1]:
                statuses.add(shown.called(http, method, url, json=bodies[0], headers=headers))
            for body in bodies:
                statuses.add(shown.called(http, method, url, json=body, headers=ways[-1]))
    # Secrets in places where they do not belong.
    right = SECRETS["admin token"]
    shown.answer(http.get("/api/v1/slots/x", params={"token": right, "access_token": right}))
    shown.answer(http.get("/", headers=ways[-1]))
    shown.answer(http.get("/docs"))
    return statuses


def logged_in(service: Service, shown: Shown) -> str:
    """The secret of a session of the console, which the cookie carries, and nothing else."""
    with service.client() as browser:
        shown.answer(browser.post("/console/session", json={"token": SECRETS["wrong token"]}))
        assert browser.post("/console/session", json={"token": SECRETS["admin token"]}).status_code == 200
        (cookie,) = browser.cookies.jar
        for path in ("/console/session", "/admin/audit", "/admin/plans", "/"):
            assert shown.answer(browser.get(path)).status_code == 200
        assert shown.answer(browser.put("/admin/plans/x", json=BODIES[4])).status_code in (200, 403)
        return str(cookie.value)


def few_calls(http: httpx.Client, shown: Shown) -> set[int]:
    """One of each kind that needs a store."""
    headers = credentials()[-1]
    calls = [
        ("GET", "/health/ready", None),
        ("POST", "/api/v1/slots", BODIES[1]),
        ("POST", "/api/v1/limits/acquire", BODIES[5]),
        ("POST", "/api/send", BODIES[7]),
        ("POST", "/api/v1/payments", BODIES[8]),
        ("POST", "/admin/rate-limit/config", BODIES[3]),
        ("GET", "/admin/audit", None),
        ("GET", "/metrics", None),
    ]
    return {
        shown.answer(http.request(method, path, json=body, headers=headers)).status_code for method, path, body in calls
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_ever_shown(
    tmp_path: Path, own_postgres: PostgresServer, own_redis: RedisServer, form: str
) -> None:
    shown = Shown()
    database_url = with_password(own_postgres)
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "guarded", "on", f">{SECRETS['redis password']}", "~*", "&*", "+@all")
        client.config_rewrite()
    with provider() as (address, messages):
        userinfo = f"{quoted('provider user')}:{quoted('provider password')}"
        option = quoted("provider option")
        settings = {
            "PACELINE_DATABASE_URL": database_url,
            "PACELINE_REDIS_URL": f"redis://guarded:{quoted('redis password')}@{own_redis.address}/0",
            "PACELINE_SMS_WEBHOOK_URL": f"http://{userinfo}@{address}/{SECRETS['provider path']}?v={option}",
            "PACELINE_PAYMENTS_DOWNSTREAM_URL": f"http://bank:{quoted('bank password')}@{address}",
            "PACELINE_PAYMENTS_DOWNSTREAM_TOKEN": SECRETS["bank token"],
            "PACELINE_PAYMENTS_DOWNSTREAM_HMAC_KEY": SECRETS["bank signature key"],
            "PACELINE_PAYMENTS_DOWNSTREAM_HEADERS": json.dumps({"X-Key": SECRETS["bank header"]}),
            "PACELINE_API_TOKEN": SECRETS["api token"],
            "PACELINE_ADMIN_TOKEN": SECRETS["admin token"],
            "PACELINE_TEMPORAL_API_KEY": SECRETS["temporal key"],
            "PACELINE_SMS_SENDER": "worker",
            "PACELINE_LOG_LEVEL": "debug",
            "PACELINE_LOG_FORMAT": form,
            **collector_away(),
        }
        service = Service(tmp_path, **settings)
        with service, service.client() as http:
            session = logged_in(service, shown)  # first: whatever is sent to the login is an attempt
            statuses = call_everything(http, shown)
            assert {200, 202, 400, 401, 403, 404} <= statuses
            own_redis.kill()
            assert 200 in few_calls(http, shown)
            own_redis.start()
            own_postgres.kill()
            assert 503 in few_calls(http, shown)
            own_postgres.start()
            worker_run(tmp_path, settings, shown, lambda: len(messages) > 1)
        shown.add("log of the service", service.log)
        shown.add("announcement", "\n".join(service.announced))
        made = run(tmp_path, "tokens", "create", "made", "--scope", "admin", "--json", **settings)
        token = json.loads(made.stdout)["token"]
        if form == "text":  # commands keep no log
            commands(tmp_path, settings, shown, own_postgres.address, own_redis.address)
    assert len(service.log.splitlines()) > 300
    assert "Header format invalid" in service.log, "the log is there before the tracer is"
    assert "while exporting" in service.log, "a collector that is away is reported"
    assert shown.leaks(SECRETS | {"made token": token, "session": session}) == []


def worker_run(tmp_path: Path, settings: dict[str, str], shown: Shown, enough: Callable[[], bool]) -> None:
    """A worker that sends to a provider that fails, until it has retried often enough and gets SIGTERM."""
    log = tmp_path / "worker.log"
    with log.open("w") as written:
        worker = subprocess.Popen(
            command("worker", "all"), cwd=tmp_path, env=environment(**settings), stdout=written, stderr=written
        )
        try:
            asyncio.run(eventually(enough))
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
    assert "working" in log.read_text()
    shown.add("log of the worker", log.read_text())


def commands(tmp_path: Path, settings: dict[str, str], shown: Shown, postgres: str, redis: str) -> None:
    """Commands that work, and commands that fail."""
    wrong_database = f"postgresql://guarded:{quoted('wrong database password')}@{postgres}/postgres"
    wrong_redis = f"redis://guarded:{quoted('wrong redis password')}@{redis}/0"
    nowhere = f"postgresql://guarded:{quoted('database password')}@127.0.0.1:1/postgres"
    for words, changes in (
        (("doctor",), {}),
        (("doctor", "--json"), {"PACELINE_DATABASE_URL": wrong_database, "PACELINE_REDIS_URL": wrong_redis}),
        (("doctor",), {"PACELINE_DATABASE_URL": nowhere, "PACELINE_TEMPORAL_ADDRESS": redis}),
        (("tokens", "list", "--json"), {}),
        (("migrate", "status"), {"PACELINE_DATABASE_URL": wrong_database}),
        (("slots", "show", "nobody"), {}),
        (("limits", "acquire", "k", "--plan", "x"), {"PACELINE_REDIS_URL": wrong_redis}),
        (
            ("limits", "acquire", "k", "--plan", "x"),
            {"PACELINE_REDIS_URL": f"redis://{quoted('redis password')}@{redis}"},
        ),
        (("queue", "stats"), {"PACELINE_DATABASE_URL": nowhere}),
        (("serve", "--port", "0"), {"PACELINE_DATABASE_URL": database_without_a_scheme()}),
        (("doctor",), {"PACELINE_DATABASE_URL": spaced_out()}),
        (("doctor", "--json"), {"PACELINE_DATABASE_URL": spaced_out()}),
        (("migrate", "status"), {"PACELINE_DATABASE_URL": spaced_out()}),
        (("serve", "--port", "0"), {"PACELINE_DATABASE_URL": spaced_out()}),
        (("worker", "exec"), {"PACELINE_TEMPORAL_ADDRESS": "127.0.0.1:1"}),
    ):
        shown.command(run(tmp_path, *words, **settings | changes))


def spaced_out() -> str:
    """A URL whose password is not escaped."""
    return f"postgresql://guarded:{SECRETS['password with spaces']}@127.0.0.1:1/postgres"


def collector_away() -> dict[str, str]:
    """Traces go to a collector that does not answer, whose address is a secret, with a header that can't be read."""
    caller = f"{quoted('collector user')}:{quoted('collector password')}"
    return {
        "PACELINE_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": (
            f"http://{caller}@127.0.0.1:1/{SECRETS['collector path']}?k={quoted('collector option')}"
        ),
        "OTEL_EXPORTER_OTLP_HEADERS": (
            f"authorization=Bearer {SECRETS['collector header']},Bearer {SECRETS['collector header, spoilt']}"
        ),
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def database_without_a_scheme() -> str:
    return f"guarded:{quoted('database password')}@somewhere"
