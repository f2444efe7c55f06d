"""What commands share: running async work, and showing its result to people or machines."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs async work to its end."""
    return asyncio.run(work)


def say(text: str) -> None:
    """A line of the result, on standard output."""
    click.echo(text)


def remark(text: str) -> None:
    """A line about the work, on standard error."""
    click.echo(text, err=True)


def say_json(value: Any) -> None:
    """A result for machines: one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def say_table(columns: list[str], rows: list[list[str]]) -> None:
    """A result for people: a table on a terminal, values with tabs between them otherwise."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            click.echo("\t".join(row))
        return
    from headgate.server.cli.table import table  # only a terminal needs it

    for line in table(columns, rows, width=shutil.get_terminal_size().columns):
        click.echo(line)
