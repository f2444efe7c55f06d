"""Programs of paceline in processes forked from one that has imported everything: a start takes milliseconds of a
processor instead of a second."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

IMPORTED = ["paceline.server.cli.commands", "paceline.server.http.app", "paceline_sms.service.plugin"]


def _run(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    sys.argv = ["paceline", *arguments]
    from paceline.server.cli import main

    main()


@asynccontextmanager
async def forked(log: Path, *arguments: str, **environment: str) -> AsyncIterator[BaseProcess]:
    """`paceline` with these arguments, ended when left."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=_run, args=(arguments, environment, str(log)))
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        await asyncio.to_thread(process.join, 60)
        if process.is_alive():
            process.kill()
            await asyncio.to_thread(process.join)
