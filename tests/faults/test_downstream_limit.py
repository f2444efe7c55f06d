"""Four processes call somebody else's system under one `Downstream`. What counts is when calls arrive there, by the
record of a process that knows nothing of paceline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.service import until
from tests.faults.bank import largest
from tests.faults.recorder import recording

LIMIT = 20


@contextmanager
def callers(url: str, port: int, counted: str, kinds: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.faults.downstream_process", url, str(port), f"{LIMIT}/second", counted]
    processes = [subprocess.Popen([*command, kind]) for kind in kinds]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def nothing(_: list[subprocess.Popen[bytes]], __: Any) -> None:
    """No fault."""


def kill_one(processes: list[subprocess.Popen[bytes]], _: Any) -> None:
    processes[0].kill()


def freeze_one(processes: list[subprocess.Popen[bytes]], _: Any) -> None:
    os.kill(processes[1].pid, signal.SIGSTOP)
    time.sleep(1.5)  # frozen for longer than a window: what it held is free by then, or not, but never used twice
    os.kill(processes[1].pid, signal.SIGCONT)


def forget(_: list[subprocess.Popen[bytes]], request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("own_redis").client().flushall()


def restart(_: list[subprocess.Popen[bytes]], request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("own_redis")
    server.kill()
    server.start()


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ("sqlite", nothing),
        ("sqlite", kill_one),
        ("host", kill_one),
        ("host", freeze_one),
        ("postgresql", kill_one),
        ("postgresql", freeze_one),
        ("redis", forget),
        ("redis", restart),
        ("redis", freeze_one),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_no_sliding_second_brings_more_calls_than_the_rate(
    store: str, fault: Callable[..., None], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if store == "host":
        url = request.getfixturevalue("host_url")
    elif store == "postgresql":
        url = str(request.getfixturevalue("postgres_url"))
    elif store == "redis":
        url = request.getfixturevalue("own_redis").url
    with recording(latency=0.02) as recorder:
        with callers(url, recorder.port, "answer", ["async", "def", "httpx", "httpx-def"]) as processes:
            until(lambda: recorder.count() >= 3 * LIMIT)
            fault(processes, request)
            seen = recorder.count()
            until(lambda: recorder.count() >= seen + 3 * LIMIT)
        arrivals = recorder.arrivals()
    assert largest(arrivals) <= LIMIT, arrivals
