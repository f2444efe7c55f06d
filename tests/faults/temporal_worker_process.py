"""A worker process of its own, for tests to kill. It may kill itself at a given point, as a power cut would."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from headgate.dispatch.cycle import DispatchCycle
from headgate.dispatch.registry import Registry
from headgate.dispatch.reporting import OutcomeReporter
from headgate.entrypoints.worker import end_process, run_temporal_workers
from headgate.settings import Settings


async def die(*args: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(database: str, address: str, namespace: str, item_type: str, directory: str, die_at: str) -> None:
    effects = Path(directory)

    async def execute(item_id: str, context: Any) -> None:
        with (effects / f"{item_id}.attempts").open("a") as attempts:
            attempts.write("x")
        (effects / f"{item_id}.effect").touch()
        if die_at == "executed":
            await die()

    if die_at == "claimed":
        DispatchCycle.start = die  # type: ignore[method-assign]
    if die_at == "started":
        DispatchCycle.record = die  # type: ignore[method-assign]
    if die_at == "reported":
        tell = OutcomeReporter.completed

        async def tell_and_die(self: OutcomeReporter, claim: Any) -> bool:
            await tell(self, claim)
            return bool(await die())

        OutcomeReporter.completed = tell_and_die  # type: ignore[method-assign]
    registry = Registry()
    registry.register(item_type, execute)
    settings = Settings.load(database_url=database, temporal_address=address, temporal_namespace=namespace)
    await run_temporal_workers(settings, ["dispatch", "exec"], registry)


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
    end_process()
