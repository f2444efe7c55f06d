"""The authenticator, the sessions of the console, and the audit of administration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from headgate.server.access.authenticator import Authenticator
from headgate.server.access.model import Scope, Token, digest
from headgate.server.access.ports import TokenStore
from headgate.server.access.sessions import Sessions
from headgate.server.access.stores.sql import SqlAccessStore
from headgate.server.settings import Settings, is_loopback
from headgate.server.wiring.database import embedded_url
from headgate.sql.databases import database


@asynccontextmanager
async def open_access_store(settings: Settings) -> AsyncIterator[SqlAccessStore]:
    """Tokens and the audit of administration, in the settings' database."""
    shared = await database(embedded_url(settings), pool_size=settings.database_pool_size)
    try:
        yield SqlAccessStore(shared)
    finally:
        await shared.close()


def console_sessions(settings: Settings, store: SqlAccessStore, authenticator: Authenticator) -> Sessions:
    """The sessions of the console."""
    return Sessions(store.sessions, authenticator, timedelta(seconds=settings.http.session_seconds))


def open_authenticator(settings: Settings, store: TokenStore) -> Authenticator:
    """Who may call: the tokens of the settings, and those of the store; anyone on the loopback, if there never was
    one."""
    fixed = {
        "HEADGATE_API_TOKEN": (settings.api_token, frozenset({Scope.READ, Scope.ASSIGN, Scope.SEND})),
        "HEADGATE_ADMIN_TOKEN": (settings.admin_token, frozenset({Scope.ADMIN})),
    }
    return Authenticator(
        store,
        [Token(name, scopes, digest(secret.get_secret_value())) for name, (secret, scopes) in fixed.items() if secret],
        local=is_loopback(settings.host),
    )
