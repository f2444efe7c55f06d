"""The command line: one module per command group."""

from __future__ import annotations

import typer

app = typer.Typer(name="headgate", no_args_is_help=True, add_completion=False)


@app.callback()
def headgate() -> None:
    """Decides whether, when and how fast work may flow, and then makes it flow."""


def main() -> None:
    """Runs the command line."""
    app()
