"""`paceline sessions`: who is logged in to the console."""

from __future__ import annotations

import click

from paceline.server.access.ports import Session
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Group, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.access import OpenSession
from paceline.server.wiring.access import console_sessions, open_access_store, open_authenticator


@click.group("sessions", cls=Group, no_args_is_help=True)
def app() -> None:
    """List and end the logins to the console."""


@app.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List the sessions that have not ended, the newest first."""

    async def work(settings: Settings) -> list[Session]:
        async with open_access_store(settings) as store:
            return await store.sessions.all()

    with read_only_settings() as settings:
        _show(run(work(settings)), as_json)


@app.command("end")
@click.argument("session", cls=Argument)
@as_json
def end(session: str, as_json: bool) -> None:
    """End a session by its id, or all of a caller by name; every service process refuses it from now on."""

    async def work() -> list[Session]:
        settings = Settings.load()
        async with audit_change(settings, "sessions end", session), open_access_store(settings) as store:
            return await console_sessions(settings, store, open_authenticator(settings, store), None).end(session)

    ended = run(work())
    if as_json:
        _show(ended, as_json)
        return
    for each in ended:
        print_line(f"the session {OpenSession.of_session(each).id} of {each.caller} is ended")


def _show(sessions: list[Session], as_json: bool) -> None:
    shown = [OpenSession.of_session(each).dump() for each in sessions]
    if as_json:
        print_json(shown)
        return
    columns = ["id", "caller", "openedAt", "expiresAt", "address"]
    print_table(
        ["id", "caller", "opened", "expires", "address"], [[str(row[name] or "-") for name in columns] for row in shown]
    )
