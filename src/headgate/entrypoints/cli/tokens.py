"""`headgate tokens`: who may call the service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate import bootstrap
from headgate.access.gate import create_token
from headgate.access.model import Scope, Token
from headgate.entrypoints.cli.recorded import recorded
from headgate.entrypoints.cli.terminal import AsJson, remark, run, say, say_json, say_table
from headgate.iso8601 import format_instant
from headgate.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens that callers present.")

Scopes = Annotated[
    list[str], typer.Option("--scope", help=f"What it is good for: {', '.join(Scope)}; may be given several times.")
]


@app.command("create")
def create(name: str, scope: Scopes, as_json: AsJson = False) -> None:
    """Create a token and show its secret, once: it is kept nowhere."""

    async def work() -> tuple[str, Token]:
        settings = Settings.load()
        async with recorded(settings, "tokens create", name), bootstrap.access_store(settings) as store:
            return await create_token(store, name, scope)

    secret, token = run(work())
    if as_json:
        say_json({**_shown(token), "token": secret})
        return
    say(secret)
    remark(f"token {name} may {', '.join(sorted(token.scopes))}; this is the only time its secret is shown")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List tokens, revoked ones too; never their secrets."""

    async def work() -> list[Token]:
        async with bootstrap.access_store(Settings.load()) as store:
            return await store.tokens()

    shown = [_shown(token) for token in run(work())]
    if as_json:
        say_json(shown)
    else:
        rows = [
            [row["name"], " ".join(row["scopes"]), row["createdAt"] or "-", row["revokedAt"] or "-"] for row in shown
        ]
        say_table(["name", "scopes", "created", "revoked"], rows)


@app.command("revoke")
def revoke(name: str, as_json: AsJson = False) -> None:
    """Make a token worthless; every service process knows within five seconds."""

    async def work() -> tuple[Token, bool]:
        settings = Settings.load()
        async with recorded(settings, "tokens revoke", name), bootstrap.access_store(settings) as store:
            return await store.revoke(name), bool(await bootstrap.gate(settings, store).keyring())

    token, others = run(work())
    say_json(_shown(token)) if as_json else say(f"{token.name} is revoked")
    if not others:
        remark(
            "that was the last token: nobody may call until there is another; make one with `headgate tokens create`"
        )


def _shown(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "scopes": sorted(token.scopes),
        "createdAt": format_instant(token.created_at) if token.created_at else None,
        "revokedAt": format_instant(token.revoked_at) if token.revoked_at else None,
    }
