"""`paceline tokens`: the tokens of the service's callers."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from paceline.durations import parse_duration, parse_moment
from paceline.server.access.authenticator import create_token, rotate_token
from paceline.server.access.model import Scope, Token
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Group, as_json, completing
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.stored_names import token_names
from paceline.server.cli.terminal import print_json, print_line, print_status, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.access import TokenCreated, TokenShown
from paceline.server.wiring.access import open_access_store, open_authenticator

EXPIRES = "--expires"


def _show_secret(secret: str, token: Token, as_json: bool, note: str) -> None:
    if as_json:
        print_json(TokenCreated.of(token, token=secret).dump())
        return
    print_line(secret)
    print_status(note)


@click.group("tokens", cls=Group, no_args_is_help=True)
def app() -> None:
    """Create, list, rotate and revoke the tokens that callers present."""


@app.command("create")
@click.argument("name", cls=Argument)
@click.option(
    "--scope",
    multiple=True,
    required=True,
    shell_complete=completing(Scope),
    help=f"What it is good for: {', '.join(Scope)}; may be given several times.",
)
@click.option(
    "--for",
    "patterns",
    multiple=True,
    help="Bind it to configs, plans, keys, item types and downstreams of a name, or whose names begin so (team-a-*); "
    "may be given several times.",
)
@click.option("--rate", help="How often it may be used (100/second).")
@click.option("--expires", help="After how long it is worthless (P90D), or when (2027-01-01T00:00:00Z).")
@as_json
def create(
    name: str, scope: tuple[str, ...], patterns: tuple[str, ...], rate: str | None, expires: str | None, as_json: bool
) -> None:
    """Create a token and show its secret, once: it is kept nowhere."""

    async def work() -> tuple[str, Token]:
        settings = Settings.load()
        async with audit_change(settings, "tokens create", name), open_access_store(settings) as store:
            until = None if expires is None else parse_moment(expires, datetime.now(UTC), EXPIRES, past=False)
            return await create_token(store, name, scope, until, patterns=patterns, rate=rate)

    secret, token = run(work())
    scopes = ", ".join(sorted(token.scopes))
    names = f" for {', '.join(token.names.patterns)}" if token.names else ""
    _show_secret(secret, token, as_json, f"token {name} may {scopes}{names}; this is the only time its secret is shown")


@app.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List tokens, revoked ones too; never their secrets."""

    async def work(settings: Settings) -> list[Token]:
        async with open_access_store(settings) as store:
            return await store.tokens()

    with read_only_settings() as settings:
        tokens = [TokenShown.of(token) for token in run(work(settings))]
    if as_json:
        print_json([token.dump() for token in tokens])
    else:
        rows = [
            [
                token.name,
                " ".join(token.scopes),
                " ".join(token.names) or "-",
                *(time or "-" for time in (token.created_at, token.expires_at, token.revoked_at)),
            ]
            for token in tokens
        ]
        print_table(["name", "scopes", "for", "created", "expires", "revoked"], rows)


@app.command("rotate")
@click.argument("name", cls=Argument, shell_complete=token_names)
@click.option("--overlap", default="PT1H", help="How long the earlier secret stays good.")
@as_json
def rotate(name: str, overlap: str, as_json: bool) -> None:
    """Give a token another secret and show it, once; the earlier one stays good for a while."""
    length = parse_duration(overlap, "--overlap")

    async def work() -> tuple[str, Token]:
        settings = Settings.load()
        async with audit_change(settings, "tokens rotate", name), open_access_store(settings) as store:
            return await rotate_token(store, name, length)

    secret, token = run(work())
    note = f"the earlier secret of {name} is good for {overlap} more; this is the only time the new one is shown"
    _show_secret(secret, token, as_json, note)


@app.command("revoke")
@click.argument("name", cls=Argument, shell_complete=token_names)
@as_json
def revoke(name: str, as_json: bool) -> None:
    """Make a token worthless; every service process knows within five seconds."""

    async def work() -> tuple[Token, bool]:
        settings = Settings.load()
        async with audit_change(settings, "tokens revoke", name), open_access_store(settings) as store:
            return await store.revoke(name), bool(await open_authenticator(settings, store).keyring())

    token, others = run(work())
    print_json(TokenShown.of(token).dump()) if as_json else print_line(f"{token.name} is revoked")
    if not others:
        print_status(
            "that was the last token: nobody may call until there is another; make one with `paceline tokens create`"
        )
