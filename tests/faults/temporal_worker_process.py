"""A worker process of its own, for tests to kill. It may kill itself at a given point, as a power cut would."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from paceline.dispatch.registry import Registry
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.server.settings import Settings
from paceline.server.worker import end_process, run_temporal_workers


async def die(*args: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(database: str, address: str, namespace: str, item_type: str, directory: str, die_at: str) -> None:
    def note(name: str) -> None:
        with (Path(directory) / name).open("a") as file:
            file.write("x")

    async def execute(item_id: str, context: Any) -> None:
        note(f"{item_id}.attempts")
        if die_at == "executing":
            await die()
        note(f"{item_id}.effects")
        if die_at == "executed":
            await die()

    if die_at == "claimed":
        DispatchCycle.start = die  # type: ignore[method-assign]
    if die_at == "started":
        DispatchCycle.record = die  # type: ignore[method-assign]
    if die_at == "recorded":
        record = DispatchCycle.record

        async def record_and_die(self: DispatchCycle, *args: Any, **options: Any) -> None:
            await record(self, *args, **options)
            await die()

        DispatchCycle.record = record_and_die  # type: ignore[method-assign]
    if die_at == "reported":
        tell = OutcomeReporter.completed

        async def tell_and_die(self: OutcomeReporter, claim: Any, completion: Any = None) -> bool:
            await tell(self, claim, completion)
            return bool(await die())

        OutcomeReporter.completed = tell_and_die  # type: ignore[method-assign]
    registry = Registry()
    registry.register(item_type, execute)
    settings = Settings.load(database_url=database, temporal_address=address, temporal_namespace=namespace)
    # One that dies as it has recorded executes nothing: else its executions might be quicker than its record.
    roles = ["dispatch"] if die_at == "recorded" else ["dispatch", "exec"]
    await run_temporal_workers(settings, roles, registry)


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
    end_process()
