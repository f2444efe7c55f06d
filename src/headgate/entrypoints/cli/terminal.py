"""What commands share: running async work, and showing its result to people or machines."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]
"""The `--json` option every reading command has."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs async work to its end."""
    return asyncio.run(work)


def say(text: str) -> None:
    """A line of the result, on standard output."""
    typer.echo(text)


def remark(text: str) -> None:
    """A line about the work, on standard error."""
    typer.echo(text, err=True)


def say_json(value: Any) -> None:
    """A result for machines: one line of JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def say_table(columns: list[str], rows: list[list[str]], title: str | None = None) -> None:
    """A result for people: a table on a terminal, values with tabs between them otherwise."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            typer.echo("\t".join(row))
        return
    # Imported here, as below: only a terminal needs it.
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


class Counting:
    """Shows how far a long piece of work is: a bar on a terminal, a plain line now and then otherwise."""

    EVERY = 100_000

    def __init__(self, progress: Progress | None, what: str) -> None:
        self._progress = progress
        self._what = what
        self._task = progress.add_task(what, total=None) if progress else None
        self._done = 0

    def advance(self, count: int) -> None:
        """`count` more are done."""
        before, self._done = self._done, self._done + count
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, count)
        elif before // self.EVERY != self._done // self.EVERY:
            remark(f"{self._what}: {self._done}")


@contextmanager
def counting(what: str) -> Iterator[Counting]:
    """Progress of work whose end is not known beforehand, on standard error."""
    if not sys.stderr.isatty():
        yield Counting(None, what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description} {task.completed}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Counting(progress, what)
