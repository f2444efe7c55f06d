"""`headgate migrate`: the database's schema."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headgate import bootstrap
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json
from headgate.settings import Settings, masked

app = typer.Typer(help="Bring the database to this version's schema. The service does so itself when it starts.")


class Dialect(StrEnum):
    """Databases headgate has a schema for."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    ORACLE = "oracle"


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """Bring the database to this version's schema. The service does so itself when it starts."""
    if context.invoked_subcommand is None:
        up()


@app.command("up")
def up(as_json: AsJson = False) -> None:
    """Apply what is missing."""
    applied = run(bootstrap.migrate_up(Settings.load().database_url))
    if as_json:
        say_json({"applied": applied})
    else:
        say(f"applied {', '.join(applied)}" if applied else "nothing to do: the schema is up to date")


@app.command("status")
def status(as_json: AsJson = False) -> None:
    """Show what is applied and what is missing; exit status 1 if anything is."""
    url = Settings.load().database_url
    facts = run(bootstrap.database_facts(url))
    if as_json:
        say_json({"database": masked(url), "revision": facts.revision, "pending": facts.pending})
    else:
        say(f"{masked(url)} is at {facts.revision or 'nothing'}")
        say(f"missing: {', '.join(facts.pending)}; run headgate migrate up" if facts.pending else "up to date")
    raise typer.Exit(1 if facts.pending else 0)


@app.command("sql")
def sql(dialect: Annotated[Dialect, typer.Option(help="For which database.")]) -> None:
    """Print the SQL of the whole schema, for a database administrator to review and run."""
    say(bootstrap.migration_script(dialect.value))
