"""`paceline top`: what arrives, waits, runs and leaves, live."""

from __future__ import annotations

import asyncio
import math
import shutil
from datetime import datetime

import click

from paceline.durations import parse_instant
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.screen import Screen, coloured, panel
from paceline.server.cli.table import table
from paceline.server.cli.terminal import print_json, print_table, run
from paceline.server.flow import SECONDS, Flow, Flows
from paceline.server.settings import Settings
from paceline.server.shapes.flow import FlowNow, FlowsShown
from paceline.server.wiring.queue import open_queue
from paceline.server.wiring.slots import open_slots

COLUMNS = [
    "queue",
    "arrived",
    "waiting",
    "held",
    "late",
    "running",
    "done",
    "unknown",
    "dead",
    "limit",
    "peak",
    "done by",
]
LEVELS = " ▁▂▃▄▅▆▇█"
SHOWN_SECONDS = 300


@click.command("top", cls=Command)
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option("--every", type=click.FloatRange(0.5, 60), default=2.0, help="Seconds between two looks; by default 2.")
@as_json
def top(once: bool, every: float, as_json: bool) -> None:
    """Show what arrives, waits, runs and leaves, per queue, live.

    arrived and done count the last minute; late is how long the first due item has waited, whoever holds it; peak is
    the most that began in any second of the last quarter of an hour. Ctrl+C ends it.
    """
    with read_only_settings() as settings:
        try:
            run(_top(settings, every=None if once or as_json else every, as_json=as_json))
        except KeyboardInterrupt:
            return


async def _top(settings: Settings, *, every: float | None, as_json: bool) -> None:
    async with open_queue(settings) as queue, open_slots(settings) as slots:
        flows = Flows(queue.store, slots)

        async def look() -> list[Flow]:
            return [await flows.queue(config.item_type) for config in await queue.configs()]

        if every is None:
            shown = [FlowNow.of_flow(flow) for flow in await look()]
            if as_json:
                print_json(FlowsShown(flows=shown).dump())
            else:
                print_table(COLUMNS, [_row(flow) for flow in shown])
            return
        with Screen() as screen:
            while True:
                screen.show(lines(await look(), shutil.get_terminal_size().columns))
                await asyncio.sleep(every)


def lines(flows: list[Flow], width: int) -> list[str]:
    """The table, and a picture of each queue that moves: what arrived above what was done, second by second."""
    shown = [*table(COLUMNS, [_row(FlowNow.of_flow(flow)) for flow in flows], width=width)]
    for flow in flows:
        if any(flow.arrived.counts[-SHOWN_SECONDS:]) or flow.waiting or flow.running:
            shown += ["", *_picture(flow, width)]
    return shown


def _picture(flow: Flow, width: int) -> list[str]:
    columns = max(10, width - 16)
    each = -(-SHOWN_SECONDS // columns)
    arrived, done = (
        [max(line.counts[at : at + each]) for at in range(SECONDS - each * columns, SECONDS, each)]
        for line in (flow.arrived, flow.done)
    )
    # As high as the limit, so that one burst does not flatten the rest.
    scale = max([*done, 1, *(arrived if flow.limit is None else [flow.limit])])
    limit = "no limit known" if flow.limit is None else f"limit {flow.limit:g}/s"
    title = f"{flow.name}: {flow.waiting:,} wait, {limit}, peak {flow.peak}/s"
    bars = [("arrived", arrived, "dim"), ("done", done, "green")]
    return panel(title, [f"{name:<8} {coloured(_bar(counts, scale), colour)}" for name, counts, colour in bars], width)


def _bar(counts: list[int], scale: float) -> str:
    return "".join(LEVELS[min(8, math.ceil(count * 8 / scale))] for count in counts)


def _row(flow: FlowNow) -> list[str]:
    late = "-" if flow.late_secs is None else f"{flow.late} ({flow.late_secs:.0f} s)"
    done_by = "never" if flow.done_by is None else _local(parse_instant(flow.done_by, "doneBy"), flow.waiting)
    limit = "-" if flow.limit is None else f"{flow.limit:g}/s"
    numbers = [str(number) for number in (flow.arrived, flow.waiting, flow.held)]
    more = [str(number) for number in (flow.running, flow.done, flow.unknown, flow.dead)]
    return [flow.name, *numbers, late, *more, limit, str(flow.peak), done_by]


def _local(at: datetime, waiting: int) -> str:
    return f"{at.astimezone():%H:%M:%S}" if waiting else "-"
