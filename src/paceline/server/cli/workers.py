"""`paceline workers`: the workers of each queue."""

from __future__ import annotations

import click

from paceline.dispatch.worker.heartbeats import Worker
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.dispatch import WorkersShown
from paceline.server.wiring.queue import open_queue

COLUMNS = (
    "host", "pid", "version", "engine", "roles", "itemTypes", "concurrency", "running", "startedAt", "seenAt", "alive",
)  # fmt: skip


@click.command("workers", cls=Command)
@as_json
def workers(as_json: bool) -> None:
    """Show the workers of each queue, and the queues without workers.

    A worker that was killed is shown as not alive for a day.
    """
    with read_only_settings() as settings:
        document = WorkersShown.of_workers(*run(_workers(settings))).dump()
    if as_json:
        print_json(document)
        return
    print_table([*COLUMNS], [[_cell(worker[name]) for name in COLUMNS] for worker in document["workers"]])
    for item_type in document["unattended"]:
        print_line(f"nobody works on {item_type}")


async def _workers(settings: Settings) -> tuple[list[Worker], list[str]]:
    async with open_queue(settings) as queue:
        workers, unattended = await queue.workers()
        return list(workers), list(unattended)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
