"""Functions that commands share: running async work, and printing its result for people or machines."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from paceline.server.cli.screen import coloured
from paceline.server.cli.streams import OutputError

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs async work to its end."""
    return asyncio.run(work)


def print_line(text: str) -> None:
    """Prints a line of the result, on standard output.

    Raises:
        OutputError: It is closed or full.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from error


def emphasized(text: str, colour: str) -> str:
    """The text in a colour where a person reads the result: on a terminal."""
    return coloured(text, colour) if sys.stdout.isatty() else text


def print_status(text: str) -> None:
    """Prints a line about the work, on standard error."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Prints a result for machines: one line of JSON."""
    print_line(json.dumps(value, ensure_ascii=False))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Prints a result for people: a table on a terminal, values with tabs between them otherwise."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            print_line("\t".join(row))
        return
    from paceline.server.cli.table import table  # only a terminal needs it

    for line in table(columns, rows, width=shutil.get_terminal_size().columns):
        print_line(line)
