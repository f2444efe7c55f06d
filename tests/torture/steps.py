"""The tasks of a run: `paceline worker tests.torture.steps:tasks`. Each execution notes its beginning and its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from paceline import Tasks, current_task
from tests.torture.history import Recorder

LOG = "TORTURE_LOG"
ITEM_TYPE = "STEP"


async def step(seconds: float) -> dict[str, int]:
    """Takes a while. The result has the claim's epoch."""
    recorder = Recorder(Path(os.environ[LOG]))
    current = current_task()
    # The epoch is no part of the public interface: the checker needs it to order two claims.
    epoch = current._claim().epoch
    who = {"item": current.item_id, "epoch": epoch, "process": os.getpid()}
    recorder.write("begin", **who)
    await asyncio.sleep(seconds)
    recorder.write("end", **who)
    recorder.close()
    return {"epoch": epoch}


def steps_on(url: str) -> tuple[Tasks, Any]:
    """The tasks on a database, and the one to queue."""
    tasks = Tasks(url)
    return tasks, tasks.task(retries=50, timeout=60)(step)


tasks, _ = steps_on(os.environ.get("PACELINE_DATABASE_URL", "sqlite://"))
