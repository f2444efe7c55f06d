"""`headgate queue`: look at the dispatch queue and operate it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, TypeVar

import typer

from headgate import bootstrap
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.queue import DispatchQueue
from headgate.entrypoints.cli.recorded import recorded
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json, say_table
from headgate.entrypoints.field_names import typed_as
from headgate.errors import InvalidInput
from headgate.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Look at the dispatch queue and operate it.")

T = TypeVar("T")

ItemType = Annotated[str, typer.Argument(metavar="TYPE", help="The item type, such as PAYMENT.")]
ItemIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Which items.")]
AllDead = Annotated[bool, typer.Option("--all", help="All dead letters of the type.")]

COLUMNS = ["itemId", "status", "executeAt", "retryCount", "lastError"]


def _with_queue(work: Callable[[DispatchQueue], Awaitable[T]], *changing: str) -> T:
    """Does `work` on the queue; if it changes something, recorded under these words."""

    async def opened() -> T:
        settings = Settings.load()
        async with AsyncExitStack() as opened:
            if changing:
                await opened.enter_async_context(recorded(settings, *changing))
            return await work(await opened.enter_async_context(bootstrap.dispatch_queue(settings)))

    with typed_as(item_type="TYPE", item_id="ID", ids="ID", status="--status", limit="--limit"):
        return run(opened())


@app.command("stats")
def stats(
    item_type: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Left out, every item type.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many items stand where."""

    async def work(queue: DispatchQueue) -> list[dict[str, object]]:
        types = [config.item_type for config in await queue.configs()] if item_type is None else [item_type]
        return [(await queue.stats(each)).to_json() for each in types]

    found = _with_queue(work)
    if as_json:
        say_json(found if item_type is None else found[0])
        return
    for each in found:
        say(f"{each['itemType']}")
        depth = each["depth"]
        assert isinstance(depth, dict)
        for status, count in depth.items():
            say(f"  {status}: {count}")
        age = each["oldestReadyAgeSecs"]
        say(f"  oldest due item waits: {'-' if age is None else f'{age:.1f} s'}")


@app.command("list")
def list_(
    item_type: ItemType,
    status: Annotated[str | None, typer.Option(help="Only these, such as DEAD_LETTER.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
    after: Annotated[str | None, typer.Option(help="Those after this id: the last of the page before.")] = None,
    as_json: AsJson = False,
) -> None:
    """List items in order of their ids."""
    found = [item.to_json() for item in _with_queue(lambda q: q.list(item_type, status, limit=limit, after=after))]
    if as_json:
        say_json(found)
    else:
        say_table(COLUMNS, [["-" if item[name] is None else str(item[name]) for name in COLUMNS] for item in found])


@app.command("show")
def show(item_type: ItemType, item_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False) -> None:
    """Show an item, its context, and what happened to it."""
    found = _with_queue(lambda queue: queue.show(item_type, item_id)).to_json()
    if as_json:
        say_json(found)
        return
    for name, value in found.items():
        if name != "audit":
            say(f"{name}: {'-' if value is None else json.dumps(value, ensure_ascii=False).strip(chr(34))}")
    for entry in found["audit"]:
        steps = f"{entry['statusBefore']} -> {entry['statusAfter']}"
        detail = f" ({entry['detail']})" if entry["detail"] else ""
        say(f"  {entry['createdAt']} {entry['action']}: {steps}{detail}")


@app.command("requeue")
def requeue(item_type: ItemType, item_ids: ItemIds = None, every: AllDead = False, as_json: AsJson = False) -> None:
    """Make dead letters ready again, as new. All of the given ids, or none."""
    chosen = _chosen(item_ids, every)
    words = ("queue requeue", item_type, *(chosen or ["--all"]))
    _say_count("requeued", _with_queue(lambda queue: queue.requeue(item_type, chosen), *words), as_json)


@app.command("discard")
def discard(item_type: ItemType, item_ids: ItemIds = None, every: AllDead = False, as_json: AsJson = False) -> None:
    """Cancel items that are ready or dead letters. All of the given ids, or none."""
    chosen = _chosen(item_ids, every)
    words = ("queue discard", item_type, *(chosen or ["--all"]))
    _say_count("discarded", _with_queue(lambda queue: queue.discard(item_type, chosen), *words), as_json)


@app.command("pause")
def pause(item_type: ItemType, as_json: AsJson = False) -> None:
    """Throw the kill switch: nothing of this type starts any more, nothing is lost."""
    _say_switch(_with_queue(lambda queue: queue.pause(item_type), "queue pause", item_type), as_json)


@app.command("resume")
def resume(item_type: ItemType, as_json: AsJson = False) -> None:
    """Let a paused type go on."""
    _say_switch(_with_queue(lambda queue: queue.resume(item_type), "queue resume", item_type), as_json)


def _chosen(item_ids: list[str] | None, every: bool) -> list[str] | None:
    if bool(item_ids) == every:
        raise InvalidInput("ID", "is required, or --all for all dead letters; give one of the two")
    return item_ids or None


def _say_count(done: str, count: int, as_json: bool) -> None:
    if as_json:
        say_json({"count": count})
    else:
        say(f"{done} {count} items")


def _say_switch(config: DispatchConfig, as_json: bool) -> None:
    if as_json:
        say_json(config.to_json())
    else:
        say(f"{config.item_type} is {'enabled' if config.enabled else 'paused'}")
