"""`paceline audit`; and changes made by commands leave the same audit rows as those made under `/admin`."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
from click.core import ParameterSource

from paceline.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PacelineError,
    SlotInUse,
    SlotOwned,
    StaleVersion,
    StoreUnavailable,
)
from paceline.server.access.audit_chain import Verification
from paceline.server.apps import app_parts
from paceline.server.cli.parameters import Group, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import print_json, print_line, run
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store

METHOD = "CLI"


@click.group("audit", cls=Group, no_args_is_help=True)
def app() -> None:
    """Check the record of who changed what."""


@app.command("verify")
@click.option("--kept", metavar="HASH", help="A last hash that was printed before: the chain must still hold it.")
@as_json
def verify(kept: str | None, as_json: bool) -> None:
    """Compare the audit, and what applications keep, with chains of hashes; exit status 1 if anything was changed,
    removed or inserted. Only a hash that was kept shows that the newest entries were cut off."""

    async def work(settings: Settings) -> Verification:
        async with open_access_store(settings) as store:
            result = await store.verify_audit(kept)
        for verify_app in app_parts("verify_audit"):
            count, problems = await verify_app(settings)
            result = result._replace(entries=result.entries + count, problems=[*result.problems, *problems])
        return result

    with read_only_settings() as settings:
        result = run(work(settings))
    if as_json:
        print_json(result._asdict() | {"intact": not result.problems})
    else:
        for problem in result.problems:
            print_line(problem)
        state = "is intact" if not result.problems else "is NOT intact"
        print_line(f"the audit {state}: {result.entries} entries, {result.links} links, the last is {result.head}")
    raise click.exceptions.Exit(1 if result.problems else 0)


STATUSES: tuple[tuple[type[PacelineError], int], ...] = (
    (InvalidInput, 400),
    (NotFound, 404),
    (StaleVersion, 412),
    (Conflict, 409),
    (SlotOwned, 409),
    (SlotInUse, 409),
    (StoreUnavailable, 503),
)


@asynccontextmanager
async def audit_change(settings: Settings, *words: str) -> AsyncIterator[None]:
    """Audits the change made in the block, under this command and its user: before it, so that a change that can't be
    recorded is not made, and after it with the equivalent HTTP status."""
    requested = _options()
    async with open_access_store(settings) as audit:
        number = await audit.begin(f"cli:{user()}"[:64], METHOD, " ".join(words), os.urandom(12).hex())
        try:
            yield
        except PacelineError as error:
            status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
            await audit.end(number, status, requested)
            raise
        except Exception:
            await audit.end(number, 500, requested)
            raise
        await audit.end(number, 200, requested)


def _options() -> str | None:
    """The command's arguments, as JSON by the options' names. No command takes a secret there."""
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    typed = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name != "as_json"
    }
    return json.dumps(typed, default=str, ensure_ascii=False) if typed else None


def user() -> str:
    """The user of this process, by the operating system: an environment variable could hold anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
