"""Services and workers of a game day, each in a process of its own, and where they are scraped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2 as httpx

from paceline.testing import eventually
from paceline.testing.servers.ports import PortClaim
from tests.acceptance.service import Service, command, environment


@asynccontextmanager
async def serving(folder: Path, port: int, **variables: str) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A service on that port, and a client of it that is an administrator, if there are administrators."""
    service = Service(folder, "--port", str(port), PACELINE_LOG_LEVEL="warning", **variables)
    await asyncio.to_thread(service.start)
    token = variables.get("PACELINE_ADMIN_TOKEN")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=100)
    try:
        async with httpx.AsyncClient(base_url=service.url, timeout=30, headers=headers, limits=limits) as client:
            yield service, client
    finally:
        await asyncio.to_thread(service.stop)


@asynccontextmanager
async def working(
    folder: Path, name: str, port: int, *arguments: str, **variables: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A `paceline worker` that shows its metrics on that port; killed at the end, if it is still there."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command("worker", *arguments, "--metrics-port", str(port)),
            cwd=folder,
            env=environment(PACELINE_LOG_LEVEL="warning", **variables),
            stdout=log,
            stderr=log,
        )
    try:
        await eventually(lambda: asyncio.to_thread(_lives, port), within=60, every=0.2)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)


def _lives(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    """A process is frozen while the block runs: it keeps its connections and answers nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def ports(count: int) -> AsyncIterator[list[int]]:
    """So many ports that stay ours."""
    claims = [PortClaim() for _ in range(count)]
    try:
        yield [claim.number for claim in claims]
    finally:
        for claim in claims:
            claim.release()
