"""Gateways and senders as processes of their own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from paceline.testing import eventually


@asynccontextmanager
async def served(count: int, directory: Path, **environment: str) -> AsyncIterator[list[str]]:
    """The URLs of so many services, each `paceline serve`, ended when left."""
    processes = []
    try:
        for number in range(count):
            said = directory / f"service-{number}.log"
            with said.open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "paceline", "serve", "--port", "0"],
                    cwd=directory,
                    env={**os.environ, **environment},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            processes.append((process, said))
        yield [await eventually(partial(url_in, said), within=60) for _, said in processes]
    finally:
        for process, _ in processes:
            process.terminate()
        for process, _ in processes:
            await asyncio.to_thread(process.wait, 60)


def url_in(log: Path) -> str | None:
    found = re.search(r"listening on (http://\S+)", log.read_text(errors="replace"))
    return found[1] if found else None
