"""Every example runs as documented, in its own process, with the documented result."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline.testing import eventually
from paceline.testing.servers.server import Server
from tests.acceptance.service import Service

EXAMPLES = Path(__file__).parents[2] / "examples"
CAPACITY = 5
MOST_TRIES = 300


class Example(Server):
    """An example that serves HTTP on the port it is given."""

    name = "example"

    def __init__(self, script: str, *options: str, environment: dict[str, str] | None = None) -> None:
        super().__init__()
        self._script = script
        self._options = options
        self._environment = environment or {}

    def command(self) -> Sequence[str]:
        return [sys.executable, str(EXAMPLES / self._script), str(self.port), *self._options]

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._environment}

    def answers(self) -> bool:
        return httpx.get(f"http://{self.address}/nowhere").status_code in (200, 404)


@pytest.fixture
async def serve(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    script, *options = request.param
    with Example(script, *options) as server:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=30) as client:
            yield client


async def exhaust(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> tuple[list[httpx.Response], int]:
    """Responses up to and with the first denial, and their number."""
    seen: list[httpx.Response] = []
    while not seen or seen[-1].status_code == 200:
        assert len(seen) < MOST_TRIES, "the limit never bound"
        seen.append(await client.get(path, headers=headers))
    return seen, len(seen) - 1


async def check_limits(client: httpx.AsyncClient, path: str, plan: str, headers: dict[str, str]) -> None:
    """The guarantees of every integration, seen from outside."""
    seen, admitted = await exhaust(client, path, headers)
    assert admitted >= CAPACITY
    for response in seen[:-1]:
        assert response.status_code == 200
        assert "Retry-After" not in response.headers
        assert response.headers["RateLimit-Policy"].startswith(f'"{plan}";q={CAPACITY};w=1')
        assert re.match(rf'"{plan}";r=[0-4];t=[01]\b', response.headers["RateLimit"])
    assert seen[0].headers["RateLimit"].startswith(f'"{plan}";r=4;t=1')
    denied = seen[-1]
    assert denied.status_code == 429
    assert denied.headers["Content-Type"] == "application/problem+json"
    assert denied.headers["Retry-After"] == "1"
    assert denied.headers["RateLimit"].startswith(f'"{plan}";r=0;t=1')
    body = denied.json()
    assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert body["title"] == "Rate Limit Exceeded"
    assert body["status"] == 429
    assert body["violated-policies"] == [plan]
    again = await eventually(lambda: _admitted(client, path, headers))
    assert again.status_code == 200


async def _admitted(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> httpx.Response | None:
    response = await client.get(path, headers=headers)
    return response if response.status_code == 200 else None


async def check_keys(client: httpx.AsyncClient, path: str) -> None:
    """Another key has its own limit; no key at all is 400, never a bucket shared by mistake."""
    await exhaust(client, path, {"X-API-Key": "greedy"})
    assert (await client.get(path, headers={"X-API-Key": "modest"})).status_code == 200
    missing = await client.get(path)
    assert missing.status_code == 400
    assert missing.headers["Content-Type"] == "application/problem+json"
    assert missing.json()["title"] == "Missing/Invalid Arguments"
    assert "X-API-Key" in missing.json()["detail"]
    assert "RateLimit" not in missing.headers


async def check_addresses(client: httpx.AsyncClient, path: str, plan: str) -> None:
    """Addresses are keys, and no client gets another one by forging it."""
    await check_limits(client, path, plan, {})
    await exhaust(client, path, {})
    statuses = []
    for n in range(MOST_TRIES):
        forged = {"X-Forwarded-For": f"203.0.113.{n % 250}", "Forwarded": f"for=198.51.100.{n % 250}"}
        statuses.append((await client.get(path, headers=forged)).status_code)
        if statuses[-1] == 429:
            return
    pytest.fail("a forged address had a bucket of its own")


@pytest.mark.parametrize("serve", [("fastapi_app.py",)], indirect=True)
async def test_fastapi(serve: httpx.AsyncClient) -> None:
    await check_limits(serve, "/api/resource", "gold", {"X-API-Key": "a"})
    await check_keys(serve, "/api/resource")
    await check_addresses(serve, "/public", "visitors")
    first = await serve.get("/api/resource", headers={"X-API-Key": "chain"})
    assert first.headers["RateLimit-Policy"] == '"gold";q=5;w=1, "daily";q=1000;w=86400'
    assert first.headers["RateLimit"] == '"gold";r=4;t=1, "daily";r=999;t=86400'
    report = await serve.get("/api/report", params={"title": "costs"}, headers={"X-API-Key": "report"})
    assert report.json() == {"report": "costs"}
    assert report.headers["RateLimit"].startswith('"gold";r=2;')
    schema = (await serve.get("/openapi.json")).json()
    assert [parameter["name"] for parameter in schema["paths"]["/api/report"]["get"]["parameters"]] == ["title"]


async def test_fastapi_on_redis(redis_url: str) -> None:
    with Example("fastapi_app.py", environment={"PACELINE_REDIS_URL": redis_url}) as server:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=30) as client:
            await check_limits(client, "/api/resource", "gold", {"X-API-Key": "a"})


@pytest.mark.parametrize("serve", [("asgi_app.py",)], indirect=True)
async def test_asgi(serve: httpx.AsyncClient) -> None:
    await check_limits(serve, "/api/a", "gold", {})
    await exhaust(serve, "/api/b", {})
    assert (await serve.get("/api/c")).status_code == 200
    free = await serve.get("/else")
    assert free.status_code == 200
    assert "RateLimit" not in free.headers
    assert "RateLimit" not in (await serve.put("/api/c")).headers


@pytest.mark.parametrize("serve", [("flask_app.py",)], indirect=True)
async def test_flask(serve: httpx.AsyncClient) -> None:
    await check_limits(serve, "/api/resource", "gold", {"X-API-Key": "a"})
    await check_keys(serve, "/api/resource")
    await check_addresses(serve, "/public", "visitors")


@pytest.mark.parametrize("serve", [("django_app.py",), ("django_app.py", "asgi")], indirect=True, ids=["wsgi", "asgi"])
async def test_django(serve: httpx.AsyncClient) -> None:
    await check_limits(serve, "/api/resource", "gold", {"X-API-Key": "a"})
    await check_limits(serve, "/api/report", "gold", {"X-API-Key": "b"})
    await check_keys(serve, "/api/report")
    await check_addresses(serve, "/public", "visitors")


OTHERS = [("starlette_app.py",), ("quart_app.py",), ("litestar_app.py",), ("aiohttp_app.py",)]


@pytest.mark.parametrize("serve", OTHERS, indirect=True, ids=[script for (script,) in OTHERS])
async def test_other_frameworks(serve: httpx.AsyncClient) -> None:
    await check_limits(serve, "/api/resource", "gold", {"X-API-Key": "a"})
    await check_keys(serve, "/api/resource")
    await check_addresses(serve, "/public", "visitors")


@pytest.mark.parametrize("serve", [("drf_app.py",)], indirect=True)
async def test_django_rest_framework(serve: httpx.AsyncClient) -> None:
    for path, plan in (("/api/resource", "gold"), ("/public", "visitors")):
        seen, admitted = await exhaust(serve, path, {"X-API-Key": "a"})
        assert admitted >= CAPACITY
        assert seen[0].headers["RateLimit"].startswith(f'"{plan}";r=4;t=1')
        assert seen[-1].headers["Retry-After"] == "1"
        assert "throttled" in seen[-1].json()["detail"]
    assert (await serve.get("/api/resource")).status_code == 400


def _printing() -> list[Path]:
    """The examples that say in their docstring what they print."""
    return [path for path in sorted(EXAMPLES.glob("*.py")) if _promised(path)]


def _promised(path: Path) -> list[str]:
    """The indented lines after `Run it:`; `…` stands for anything."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    after = said.partition("Run it:")[2].partition("\n\n")[2]
    return [line.strip() for line in after.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("path", _printing(), ids=lambda path: path.stem)
async def test_it_prints_what_its_docstring_says(path: Path) -> None:
    printed = (await run(path.name)).splitlines()
    promised = _promised(path)
    assert len(printed) == len(promised), printed
    for line, promise in zip(printed, promised, strict=True):
        assert re.fullmatch(re.escape(promise).replace("…", ".+"), line.strip())


async def test_remote(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        admitted, runs, status = (await run("remote.py", service.url)).splitlines()
    assert admitted == "[True, True, True, False]"
    assert runs.startswith("inv-1 runs at 2030-03-01T16:00:0")
    assert status == "READY"


def test_an_example_is_short() -> None:
    long = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {name: lines for name, lines in long.items() if lines >= 60} == {}


async def test_grpc() -> None:
    lines = (await run("grpc_server.py")).splitlines()
    assert lines == ["order 0", "order 1", "order 2", "RESOURCE_EXHAUSTED retry after 10 s"]


async def test_celery() -> None:
    lines = (await run("celery_tasks.py")).splitlines()
    sent = [
        f"sent {text!r} to {user}" for user, text in (("ada", "one"), ("ada", "two"), ("ada", "!now"), ("root", "four"))
    ]
    assert lines == [*sent[:2], "refused 'three': plan letters has no room", *sent[2:]]


async def test_functions() -> None:
    output = await run("function_limits.py")
    assert len(re.findall(r"^sent '(?:one|two|three|four)' to ada$", output, re.M)) >= 3
    assert re.findall(r"^sent '\d'$", output, re.M) == [f"sent '{n}'" for n in range(8)]


@pytest.mark.parametrize("serve", [("fastapi_app.py",)], indirect=True)
async def test_outbound_calls(serve: httpx.AsyncClient) -> None:
    """The server admits 5 and then 5 a second. Each client reads the server's pause, and waits."""
    output = await run("outbound_calls.py", f"{serve.base_url}/api/resource")
    lines = [line.rsplit(maxsplit=8) for line in output.splitlines()]
    assert [name for name, *_ in lines] == ["httpx2", "requests", "async httpx2", "aiohttp"]
    for _, *statuses in lines:
        assert statuses.count("200") >= 7
        assert set(statuses) <= {"200", "429"}


async def run(script: str, *arguments: str) -> str:
    """What an example prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / script), *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, logged = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, logged.decode()
    return output.decode()
