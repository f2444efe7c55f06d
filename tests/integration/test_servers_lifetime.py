"""No server, and no directory of one, outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.testing import PostgresServer, RedisServer, ServerFailed, eventually
from paceline.testing.servers.ports import BUS_OFFSET, PortClaim
from paceline.testing.servers.reaper import family
from tests.effort import is_thorough

pytestmark = pytest.mark.full

PARENT = """
import sys, psycopg
from paceline.testing import PostgresServer, RedisServer
postgres, redis = PostgresServer().start(), RedisServer().start()
connection = psycopg.connect(postgres.url)
postgres.pause()
print(postgres.pid, redis.pid, postgres.directory, redis.directory, flush=True)
sys.stdin.read()
"""


def start_parent() -> tuple[subprocess.Popen[str], set[int], list[Path]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    words = parent.stdout.readline().split()
    return parent, family({int(word) for word in words[:2]}), [Path(word) for word in words[2:]]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None], ids=["sigkill", "sigterm", "normal exit"])
async def test_servers_end_with_their_parent_however_it_ends(end: signal.Signals | None) -> None:
    parent, processes, directories = start_parent()
    with parent:
        assert len(processes) > 3  # PostgreSQL's helpers and backends, all stopped, and Redis
        assert all(path.is_dir() for path in directories)
        if end is None:
            assert parent.stdin is not None
            parent.stdin.close()
        else:
            parent.send_signal(end)
        parent.wait(20)
    await eventually(lambda: not family(processes))
    await eventually(lambda: not any(path.exists() for path in directories))


def test_close_ends_every_process_and_removes_the_directory() -> None:
    with RedisServer() as one, PostgresServer() as other:
        processes = family({one.pid, other.pid})
        directories = [one.directory, other.directory]
        assert len(processes) > 2
    assert not family(processes)
    assert not any(path.exists() for path in directories)


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = RedisServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server, server.client() as client:
        assert client.ping()


def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    server = RedisServer(settings={"maxmemory-policy": "nonsense"})
    with pytest.raises(ServerFailed, match=r"(?s)exited with 1 while starting.*maxmemory-policy"):
        server.start()
    assert not server.running
    with pytest.raises(ServerFailed, match="start it first"):
        _ = server.directory


async def test_a_server_that_died_by_itself_is_started_again() -> None:
    with RedisServer() as server:
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: not server.running)
        server.restart()
        assert server.answers()


def test_a_closed_server_starts_afresh() -> None:
    server = PostgresServer()
    for _ in range(2):
        with server:
            assert server.answers()


def test_a_running_server_is_not_started_twice() -> None:
    with RedisServer() as server, pytest.raises(ServerFailed, match="already running"):
        server.start()


def test_a_port_taken_behind_our_back_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(durable=False) as first:
        server = RedisServer(durable=False)
        fresh = server.claim_ports

        def taken_at_first() -> list[PortClaim]:
            claims = fresh()
            claims[0].number = first.port
            monkeypatch.setattr(server, "claim_ports", fresh)
            return claims

        monkeypatch.setattr(server, "claim_ports", taken_at_first)
        with server:
            assert server.port != first.port
            assert server.answers()


def test_claimed_ports_are_distinct_and_given_back() -> None:
    claims = [PortClaim(offsets=[BUS_OFFSET]) for _ in range(50)]
    numbers = {number for claim in claims for number in (claim.number, claim.number + BUS_OFFSET)}
    assert len(numbers) == 100
    for claim in claims:
        claim.release()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    PortClaim().release()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


STARTER = f"""
from paceline.testing import RedisServer
for _ in range({5 if is_thorough() else 2}):
    with RedisServer() as server:
        assert server.answers()
"""


def test_many_start_at_once() -> None:
    starters = [subprocess.Popen([sys.executable, "-c", STARTER]) for _ in range(4)]
    assert [starter.wait(60) for starter in starters] == [0, 0, 0, 0]
