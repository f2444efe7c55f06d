"""SIGTERM in a process's first moments: while it loads, reads its settings, migrates, connects. It ends well, and what
it had begun to make can be used by the next one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from paceline.testing import TemporalServer, eventually
from tests.effort import is_thorough

MOMENTS = 7 if is_thorough() else 4
SPAN = 2.5
"""Seconds over which the moments lie; half of it is loading."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return kept | {"PACELINE_DATABASE_URL": f"sqlite:///{tmp_path / 'paceline.db'}", "PACELINE_PORT": "0"}


async def stopped_early(words: list[str], environment: dict[str, str], after: float) -> tuple[int | None, str]:
    """The exit status and the output of a command that gets a signal this long after its handler is installed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "paceline",
        *words,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        await eventually(lambda: listens(process.pid, signal.SIGTERM), within=30, every=0.005)
        await asyncio.sleep(after)  # any moment will do; none is waited for
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output.decode()


def listens(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["SigCgt"], 16) >> (signum - 1) & 1)


async def check(words: list[str], environment: dict[str, str]) -> None:
    """All at once: they compete for the CPU, which spreads their start-up times."""
    chance = random.Random(15)
    moments = [chance.uniform(0, SPAN) for _ in range(MOMENTS)]
    endings = await asyncio.gather(*(stopped_early(words, environment, moment) for moment in moments))
    for moment, (status, output) in zip(moments, endings, strict=True):
        assert status == 0, (moment, output)
        assert "Traceback" not in output, (moment, output)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc who listens to which signal")
@pytest.mark.parametrize("command", ["worker", "serve"])
async def test_a_signal_at_any_early_moment_ends_it_well(command: str, environment: dict[str, str]) -> None:
    await check([command], environment)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc who listens to which signal")
async def test_a_worker_whose_temporal_never_answers_ends_well(environment: dict[str, str]) -> None:
    with TemporalServer(durable=False) as server:
        server.pause()
        status, output = await stopped_early(["worker"], environment | {"PACELINE_TEMPORAL_ADDRESS": server.address}, 3)
        assert (status, "Traceback" in output) == (0, False), output
        server.resume()
