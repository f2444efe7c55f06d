"""`paceline queue`: look at the dispatch queue and operate it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from typing import Any, TypeVar

import click

from paceline.dispatch.changes import ResolvedAs
from paceline.dispatch.config import DispatchConfig, DispatchSettings, OnUnknown
from paceline.dispatch.model import QueueStats
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.search import FilterOptions
from paceline.dispatch.status import Status
from paceline.durations import parse_duration
from paceline.errors import InvalidInput
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Group, as_json, completing
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.stored_names import item_types
from paceline.server.cli.terminal import print_json, print_line, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.dispatch import (
    DispatchConfigShown,
    ErrorGroupShown,
    ItemDetailShown,
    ItemShown,
    QueueStatsShown,
)
from paceline.server.wiring.queue import open_queue

T = TypeVar("T")

type_argument = click.argument(
    "item_type", cls=Argument, metavar="TYPE", about="The item type, such as INVOICE.", shell_complete=item_types
)
ids_argument = click.argument("ids", cls=Argument, nargs=-1, metavar="[ID]...", about="Which items.")
all_option = click.option("--all", "every", is_flag=True, help="All dead letters of the type.")

OUTCOMES = [outcome.value for outcome in ResolvedAs]
GROUP_COLUMNS = ["count", "error", "example", "firstAt", "lastAt"]
COLUMNS = ["itemId", "status", "executeAt", "lane", "priority", "retryCount", "lastError"]


def _with_queue(work: Callable[[DispatchQueue], Awaitable[T]], *changing: str) -> T:
    """Does `work` on the queue; a change is audited under these words."""

    async def opened(settings: Settings) -> T:
        async with AsyncExitStack() as opened:
            if changing:
                await opened.enter_async_context(audit_change(settings, *changing))
            return await work(await opened.enter_async_context(open_queue(settings)))

    with nullcontext(Settings.load()) if changing else read_only_settings() as settings:
        return run(opened(settings))


@click.group("queue", cls=Group, no_args_is_help=True)
def app() -> None:
    """Look at the dispatch queue and operate it."""


@app.command("stats")
@click.argument(
    "item_type",
    cls=Argument,
    metavar="[TYPE]",
    required=False,
    about="Left out, every item type.",
    shell_complete=item_types,
)
@as_json
def stats(item_type: str | None, as_json: bool) -> None:
    """Show how many items have each status."""

    async def work(queue: DispatchQueue) -> list[QueueStats]:
        types = [config.item_type for config in await queue.configs()] if item_type is None else [item_type]
        return [await queue.stats(kind) for kind in types]

    queues = [QueueStatsShown.of_stats(stats) for stats in _with_queue(work)]
    if as_json:
        documents = [queue.dump() for queue in queues]
        print_json(documents if item_type is None else documents[0])
        return
    for queue in queues:
        print_line(queue.item_type)
        for status, count in queue.depth.items():
            print_line(f"  {status}: {count}")
        print_line(f"  held by workers: {queue.held}")
        print_line(f"  in flight: {queue.in_flight}")
        print_line(f"  workers: {queue.workers}{'' if queue.attended else ' (nobody works on it)'}")
        age = queue.oldest_ready_age_secs
        print_line(f"  late: {queue.late}{'' if age is None else f', the first for {age:.1f} s'}")


@app.command("list")
@type_argument
@click.option("--status", shell_complete=completing(Status), help="Only these, such as DEAD_LETTER.")
@click.option("--prefix", help="Only those whose ids begin so.")
@click.option("--lane", help="Only those of this lane.")
@click.option("--error", help="Only those whose last error holds this; * stands for any characters.")
@click.option("--from", "since", help="Only those that run at this time or later, …")
@click.option("--to", "until", help="… and before this one.")
@click.option("--limit", type=int, default=100, help="At most so many.")
@click.option("--after", help="Those after this id: the last of the page before.")
@as_json
def list_(item_type: str, status: str | None, limit: int, as_json: bool, **options: str | None) -> None:
    """List and search items, in order of their ids."""
    chosen = {name: value for name, value in options.items() if value is not None}
    page = _with_queue(lambda queue: queue.list(item_type, status, limit=limit, **chosen))
    items = [ItemShown.of(item).dump() for item in page]
    if as_json:
        print_json(items)
    else:
        print_table(COLUMNS, [["-" if item[name] is None else str(item[name]) for name in COLUMNS] for item in items])


@app.command("errors")
@type_argument
@as_json
def errors(item_type: str, as_json: bool) -> None:
    """Group dead letters by their errors.

    What differs between the errors of a group is shown as *. `paceline queue list TYPE --error TEXT` finds them.
    """
    groups = [ErrorGroupShown.of(group).dump() for group in _with_queue(lambda queue: queue.error_groups(item_type))]
    if as_json:
        print_json(groups)
    else:
        print_table(GROUP_COLUMNS, [[str(group[name]) for name in GROUP_COLUMNS] for group in groups])


@app.command("show")
@type_argument
@click.argument("item_id", cls=Argument, metavar="ID")
@as_json
def show(item_type: str, item_id: str, as_json: bool) -> None:
    """Show an item, its context, and what happened to it."""
    item = ItemDetailShown.of_detail(_with_queue(lambda queue: queue.show(item_type, item_id)))
    document = item.dump()
    if as_json:
        print_json(document)
        return
    for name, value in document.items():
        if name not in ("audit", "attempts"):
            print_line(f"{name}: {'-' if value is None else json.dumps(value, ensure_ascii=False).strip(chr(34))}")
    for entry in item.audit:
        steps = f"{entry.status_before} -> {entry.status_after}"
        detail = f" ({entry.detail})" if entry.detail else ""
        print_line(f"  {entry.created_at} {entry.action}: {steps}{detail}")
    for attempt in item.attempts:
        error = f": {attempt.error}" if attempt.error else ""
        place = f" on {attempt.worker}" if attempt.worker else ""
        print_line(f"attempt {attempt.number}{place}: {attempt.outcome} at {attempt.ended_at}{error}")
        for line in (attempt.traceback or "").splitlines():
            print_line(f"  {line}")


@app.command("requeue")
@type_argument
@ids_argument
@all_option
@as_json
def requeue(item_type: str, ids: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Make dead letters ready again, as new. All of the given ids, or none."""
    chosen = _chosen(ids, every)
    words = ("queue requeue", item_type, *(chosen or ["--all"]))
    _print_count("requeued", _with_queue(lambda queue: queue.requeue(item_type, chosen), *words), as_json)


@app.command("discard")
@type_argument
@ids_argument
@all_option
@as_json
def discard(item_type: str, ids: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Cancel items that are ready or dead letters. All of the given ids, or none."""
    chosen = _chosen(ids, every)
    words = ("queue discard", item_type, *(chosen or ["--all"]))
    _print_count("discarded", _with_queue(lambda queue: queue.discard(item_type, chosen), *words), as_json)


@app.command("resolve")
@type_argument
@click.argument("ids", cls=Argument, nargs=-1, required=True, metavar="ID...", about="Which items.")
@click.option("--outcome", required=True, type=click.Choice(OUTCOMES), help="What became of them.")
@click.option("--reason", help="How you know; for a refusal, the reason.")
@as_json
def resolve(item_type: str, ids: tuple[str, ...], outcome: str, reason: str | None, as_json: bool) -> None:
    """Say what became of items that are unknown.

    done: they were executed. refused: they are dead letters. again: they were never executed, and run again. All of the
    given ids, or none.
    """
    words = ("queue resolve", item_type, *ids, f"--outcome={outcome}", *([f"--reason={reason}"] if reason else []))
    count = _with_queue(lambda queue: queue.resolve(item_type, ids, outcome, reason=reason), *words)
    _print_count("resolved", count, as_json)


def _matching(command: Callable[..., None]) -> Callable[..., None]:
    """The options that select items, instead of their ids."""
    for option in (
        click.option("--to", "until", help="… and before this one."),
        click.option("--from", "since", help="All that run at this time or later, …"),
        click.option("--error", help="All whose last error holds this; * stands for any characters."),
        click.option("--lane", help="All in this lane."),
        click.option("--prefix", help="All whose ids begin so."),
        click.option("--status", shell_complete=completing(Status), help="All that stand so, such as READY."),
    ):
        command = option(command)
    return command


@app.command("cancel")
@type_argument
@ids_argument
@_matching
@as_json
def cancel(item_type: str, ids: tuple[str, ...], as_json: bool, **options: str | None) -> None:
    """Cancel items that wait, run or are dead letters.

    All of the given ids, or none; or, with options, all that match them and can be cancelled.
    """
    chosen, matching = _selected(ids, options)
    words = ("queue cancel", item_type, *ids, *(f"--{name}={value}" for name, value in matching.items()))
    _print_count("cancelled", _with_queue(lambda queue: queue.cancel(item_type, chosen, **matching), *words), as_json)


@app.command("reschedule")
@type_argument
@ids_argument
@click.option("--at", "execute_at", help="Their new time, such as 2030-03-01T16:00:00Z.")
@click.option("--priority", type=int, help="Their new priority: 0 first, 9 last.")
@click.option("--new-lane", help="Their new lane.")
@_matching
@as_json
def reschedule(
    item_type: str,
    ids: tuple[str, ...],
    execute_at: str | None,
    priority: int | None,
    new_lane: str | None,
    as_json: bool,
    **options: str | None,
) -> None:
    """Give waiting items another time, priority or lane.

    All of the given ids, or none; or, with options, all that match them and wait.
    """
    chosen, matching = _selected(ids, options)
    if execute_at is None and priority is None and new_lane is None:
        raise InvalidInput("--at", "is required, or --priority or --new-lane")
    words = ("queue reschedule", item_type, *ids, *(f"--{name}={value}" for name, value in matching.items()))

    async def work(queue: DispatchQueue) -> int:
        return await queue.reschedule(
            item_type, chosen, execute_at=execute_at, priority=priority, new_lane=new_lane, **matching
        )

    _print_count("rescheduled", _with_queue(work, *words), as_json)


@app.command("pause")
@type_argument
@as_json
def pause(item_type: str, as_json: bool) -> None:
    """Throw the kill switch: nothing of this type starts any more, nothing is lost."""

    async def work(queue: DispatchQueue) -> tuple[DispatchConfig, int]:
        config = await queue.pause(item_type)
        return config, (await queue.stats(item_type)).running

    config, in_flight = _with_queue(work, "queue pause", item_type)
    if as_json:
        print_json({**DispatchConfigShown.of(config).dump(), "inFlight": in_flight})
        return
    _print_switch(config, as_json)
    if in_flight:
        print_line(f"  in flight: {in_flight}; `paceline queue stats {item_type}` counts them down to 0")


@app.command("resume")
@type_argument
@as_json
def resume(item_type: str, as_json: bool) -> None:
    """Resume a paused type."""
    _print_switch(_with_queue(lambda queue: queue.resume(item_type), "queue resume", item_type), as_json)


@app.command("set")
@type_argument
@click.option("--rate", help="How many may begin in any such span, over all processes: 50/second; none for any number.")
@click.option("--concurrency", help="How many may be in flight at once, over all processes; none for any number.")
@click.option("--lane-concurrency", help="How many of them per lane; none for any number.")
@click.option("--max-dispatch-retries", type=int, help="After how many attempts an item is a dead letter.")
@click.option("--queue", help="The named queue that it belongs to.")
@click.option(
    "--on-unknown",
    type=click.Choice([each.value for each in OnUnknown]),
    help="What follows an attempt whose effect nobody knows.",
)
@click.option("--hold-for", "hold_for_secs", help="How long such an item waits for somebody who knows: PT24H.")
@as_json
def set_(item_type: str, as_json: bool, **options: Any) -> None:
    """Change an item type's settings: what is not given stays as it is.

    Workers keep what is set here, whatever their code says.
    """
    changes: DispatchSettings = {name: _setting(name, value) for name, value in options.items() if value is not None}  # type: ignore[assignment]
    if not changes:
        raise InvalidInput("--rate", "or another option is required: say what to change")

    async def work(queue: DispatchQueue) -> DispatchConfig:
        await queue.config(item_type)
        return await queue.configure(item_type, **changes)

    config = _with_queue(work, "queue set", item_type)
    if as_json:
        print_json(DispatchConfigShown.of(config).dump())
        return
    for name in changes:
        value = getattr(config, name)
        print_line(f"{item_type} {name.replace('_', ' ')}: {'none' if value is None else value}")


def _setting(name: str, value: Any) -> Any:
    if name == "hold_for_secs":
        return parse_duration(value, "--hold-for").total_seconds()
    if value == "none":
        return None
    if name in ("concurrency", "lane_concurrency"):
        if not value.isascii() or not value.isdigit():
            raise InvalidInput(f"--{name.replace('_', '-')}", "must be a whole number, or none")
        return int(value)
    return value


def _chosen(ids: tuple[str, ...], every: bool) -> list[str] | None:
    if bool(ids) == every:
        raise InvalidInput("ID", "is required, or --all for all dead letters; give one of the two")
    return list(ids) or None


def _selected(ids: tuple[str, ...], options: Mapping[str, str | None]) -> tuple[list[str] | None, FilterOptions]:
    matching: FilterOptions = {name: value for name, value in options.items() if value is not None}  # type: ignore[assignment]
    if bool(ids) == bool(matching):
        raise InvalidInput("ID", "is required, or options that say which items; give one of the two")
    return list(ids) or None, matching


def _print_count(done: str, count: int, as_json: bool) -> None:
    if as_json:
        print_json({"count": count})
    else:
        print_line(f"{done} {count} items")


def _print_switch(config: DispatchConfig, as_json: bool) -> None:
    if as_json:
        print_json(DispatchConfigShown.of(config).dump())
    else:
        print_line(f"{config.item_type} is {'enabled' if config.enabled else 'paused'}")
