"""Four processes call somebody else's system under one `Downstream`. What counts is when calls arrive there, by the
record of a process that knows nothing of paceline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.service import until
from tests.faults.bank import largest
from tests.faults.recorder import recording
from tests.faults.store_faults import Fault, forget, freeze, kill, named, nothing, restart, site_of

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


ALL_KINDS = ["async", "def", "httpx", "httpx-def"]
FOUR_BLOCKS = ["async"] * 4


@pytest.mark.parametrize(
    ("kinds", "store", "fault"),
    [
        (ALL_KINDS, "sqlite", nothing),
        (ALL_KINDS, "sqlite", kill),
        (ALL_KINDS, "sqlite", freeze),
        (ALL_KINDS, "host", kill),
        (ALL_KINDS, "host", freeze),
        (ALL_KINDS, "postgresql", kill),
        (ALL_KINDS, "postgresql", freeze),
        (ALL_KINDS, "postgresql", restart),
        (ALL_KINDS, "redis", kill),
        (ALL_KINDS, "redis", freeze),
        (ALL_KINDS, "redis", forget),
        (ALL_KINDS, "redis", restart),
        (FOUR_BLOCKS, "sqlite", kill),
        (FOUR_BLOCKS, "host", kill),
        (FOUR_BLOCKS, "postgresql", freeze),
        (FOUR_BLOCKS, "postgresql", restart),
        (FOUR_BLOCKS, "redis", kill),
        (FOUR_BLOCKS, "redis", forget),
    ],
    ids=lambda value: "all" if value is ALL_KINDS else "blocks" if value is FOUR_BLOCKS else named(value),
)
def test_no_sliding_second_brings_more_calls_than_the_rate(
    kinds: list[str], store: str, fault: Fault, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site = site_of(store, fault, request, tmp_path)
    with recording(latency=0.02) as recorder:
        with callers(site.url, recorder.port, "answer", kinds) as processes:
            until(lambda: recorder.count() >= 3 * LIMIT)
            fault(site._replace(processes=processes))
            seen = recorder.count()
            until(lambda: recorder.count() >= seen + 3 * LIMIT)
        arrivals = recorder.arrivals()
    assert largest(arrivals) <= LIMIT, arrivals
