"""`paceline migrate`: the database's schema."""

from __future__ import annotations

import click

from paceline.server.cli.parameters import Group, as_json, completing
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, run
from paceline.server.settings import Settings, masked
from paceline.server.wiring.database import (
    database_info,
    installed_steps,
    migrate_down,
    migrate_up,
    migration_script,
)
from paceline.sql.migrate import STEPS

DIALECTS = ("sqlite", "postgresql", "oracle")
"""Databases paceline has a schema for."""


@click.group("migrate", cls=Group, invoke_without_command=True)
@click.pass_context
def app(context: click.Context) -> None:
    """Bring the database to this version's schema, or one step back. The service does so itself on SQLite."""
    if context.invoked_subcommand is None:
        context.invoke(up)


@app.command("up")
@as_json
def up(as_json: bool) -> None:
    """Apply what is missing: of paceline and of each installed application."""
    applied = run(migrate_up(Settings.load().database_url))
    if as_json:
        print_json({"applied": applied})
    else:
        print_line(f"applied {', '.join(applied)}" if applied else "nothing to do: the schema is up to date")


@app.command("down")
@click.option(
    "--of",
    default=STEPS.name,
    show_default=True,
    shell_complete=completing(steps.name for steps in installed_steps()),
    help="Whose step: schema is paceline's own; else an application's name.",
)
@click.option("--discard-data", is_flag=True, help="Undo the step although what it added holds data, and lose that.")
@as_json
def down(of: str, discard_data: bool, as_json: bool) -> None:
    """Undo the last step; refused if what it added holds data. Earlier versions also run without this."""
    undone = run(migrate_down(Settings.load().database_url, of, discard_data=discard_data))
    print_json({"undone": undone}) if as_json else print_line(f"undone: {undone}")


@app.command("status")
@as_json
def status(as_json: bool) -> None:
    """Show what is applied and what is missing; exit status 1 if anything is."""
    url = Settings.load().database_url
    with read_only_settings() as settings:
        empty = settings.database_url.startswith("memory:")
        facts = run(database_info("sqlite://" if empty else url))
    if as_json:
        print_json({"database": masked(url), "revisions": facts.revisions, "pending": facts.pending})
    else:
        revisions = [revision for revision in facts.revisions.values() if revision is not None]
        print_line(f"{masked(url)} is at {', '.join(revisions) or 'nothing'}")
        print_line(f"missing: {', '.join(facts.pending)}; run paceline migrate up" if facts.pending else "up to date")
    raise click.exceptions.Exit(1 if facts.pending else 0)


@app.command("sql")
@click.option("--dialect", type=click.Choice(DIALECTS), required=True, help="For which database.")
def sql(dialect: str) -> None:
    """Print the SQL of the whole schema, for a database administrator to review and run."""
    print_line(migration_script(dialect))
