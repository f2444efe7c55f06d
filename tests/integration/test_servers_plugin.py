"""The plugin as a user's own test suite sees it: one server per run, skipped or failed where it can't be had."""

from __future__ import annotations

import socket
import sys

import pytest

from paceline.testing import eventually

pytestmark = pytest.mark.full

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "paceline.testing.plugin")
XDIST = ("-p", "xdist")


@pytest.fixture(autouse=True)
def only_named_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner runs load no plugin but those they name, which saves seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


SUITE = """
import psycopg, redis, os
from pathlib import Path

def test_{number}(postgres_url, redis_url, tmp_path_factory):
    with psycopg.connect(postgres_url) as connection:
        identity = connection.execute("SELECT pg_postmaster_start_time()::text || inet_server_port()").fetchone()[0]
    with redis.Redis.from_url(redis_url) as client:
        identity += client.info("server")["run_id"]
    Path({folder!r}, "{number}").write_text(identity)
"""


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n", "2")], ids=["alone", "xdist"])
def test_one_server_per_run(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    folder = pytester.mkdir("identities")
    for number in range(4):
        pytester.makepyfile(**{f"test_{number}": SUITE.format(number=number, folder=str(folder))})
    result = pytester.runpytest_subprocess(*PLUGIN, *workers)
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    assert result.errlines == []
    identities = {path.read_text() for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 4
    assert len(identities) == 1


NEEDS_REDIS = """
def test_it(redis_url):
    raise AssertionError("must not run")
"""


@pytest.mark.parametrize(
    ("required", "outcome"),
    [("", "skipped"), ("postgres", "skipped"), ("all", "errors"), ("postgres, redis", "errors")],
)
def test_a_server_that_cannot_be_had_skips_or_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: str, outcome: str
) -> None:
    monkeypatch.setenv("PACELINE_REQUIRE", required)
    pytester.makeconftest("import paceline.testing.availability as a\na.MODULES['redis'] += ('no_such_module',)\n")
    pytester.makepyfile(NEEDS_REDIS)
    result = pytester.runpytest_subprocess(*PLUGIN, "-rs")
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*no_such_module not installed: pip install 'paceline?testing,redis?'*"])


def test_a_misspelt_requirement_is_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_REQUIRE", "redis,posgres")
    pytester.makepyfile("def test_it(): ...")
    result = pytester.runpytest_subprocess(*PLUGIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*PACELINE_REQUIRE: no server ?'posgres'?;*"])


def test_tests_are_marked_by_the_servers_they_use(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(redis_url): ...\ndef test_b(postgres_url): ...\ndef test_c(): ...\n")
    result = pytester.runpytest_subprocess(*PLUGIN, "-m", "not redis and not postgres", "--strict-markers")
    result.assert_outcomes(passed=1, deselected=2)


CRASHES = """
import os, pytest, redis

@pytest.mark.parametrize("number", range(6))
def test_it(redis_url, number):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("mine", number)
        if number == 1:
            os._exit(1)
        assert client.dbsize() == 1
"""


def test_a_worker_that_crashes_takes_no_server_with_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CRASHES)
    result = pytester.runpytest_subprocess(*PLUGIN, *XDIST, "-n", "2")
    result.assert_outcomes(passed=5, failed=1)


ENDLESS = """
import threading
from pathlib import Path
from urllib.parse import urlsplit

def test_it(redis_url, own_redis):
    Path("ports").write_text(f"{urlsplit(redis_url).port} {own_redis.port}")
    for _ in range(600):
        threading.Event().wait(0.1)  # where a worker notices that its controller is gone
"""


async def test_a_run_that_is_killed_leaves_no_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ENDLESS)
    ports_file = pytester.path / "ports"
    with pytester.popen([sys.executable, "-m", "pytest", *PLUGIN, *XDIST, "-n", "1"]) as run:
        await eventually(lambda: ports_file.exists() and len(ports_file.read_text().split()) == 2)
        ports = [int(word) for word in ports_file.read_text().split()]
        assert all(is_open(port) for port in ports)
        run.kill()
    await eventually(lambda: not any(is_open(port) for port in ports))


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
