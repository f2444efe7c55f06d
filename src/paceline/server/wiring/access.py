"""The authenticator, the sessions of the console, and the audit of administration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError
from paceline.extras import require
from paceline.server.access.authenticator import Authenticator
from paceline.server.access.model import Scope, Token, digest
from paceline.server.access.names import Names
from paceline.server.access.ports import TokenStore
from paceline.server.access.sessions import Sessions
from paceline.server.access.stores.sql import SqlAccessStore
from paceline.server.settings import Settings, is_loopback, spelled
from paceline.server.wiring.database import shared_database

if TYPE_CHECKING:
    from paceline.server.access.oidc import OidcProvider


@asynccontextmanager
async def open_access_store(settings: Settings) -> AsyncIterator[SqlAccessStore]:
    """Tokens and the audit of administration, in the settings' database."""
    shared = await shared_database(settings)
    try:
        key = settings.audit_key
        yield SqlAccessStore(shared, b"" if key is None else key.get_secret_value().encode())
    finally:
        await shared.close()


def console_sessions(
    settings: Settings, store: SqlAccessStore, authenticator: Authenticator, people: OidcProvider | None
) -> Sessions:
    """The sessions of the console."""
    lifetime, check_every = settings.http.session_seconds, settings.oidc.check_seconds
    return Sessions(
        store.sessions,
        authenticator,
        timedelta(seconds=lifetime),
        people,
        check_every=timedelta(seconds=check_every),
    )


def oidc_provider(settings: Settings) -> OidcProvider | None:
    """The OpenID provider of a settings tree.

    Raises:
        ConfigurationError: There is an issuer, and what it needs is not set.
    """
    chosen = settings.oidc
    if chosen.issuer is None:
        return None
    if chosen.client_id is None:
        raise ConfigurationError(spelled("oidc", "client_id"), "is required with an issuer")
    if not chosen.scopes:
        raise ConfigurationError(
            spelled("oidc", "scopes"), 'is required with an issuer: which group may do what, as {"ops": "admin"}'
        )
    if unknown := sorted(chosen.names.keys() - chosen.scopes.keys()):
        raise ConfigurationError(spelled("oidc", "names"), f"{unknown[0]} has no scopes; name them in scopes")
    require("OpenID Connect", "oidc")
    # Imported here: the library is an extra.
    from paceline.server.access.oidc import Group, OidcProvider

    return OidcProvider(
        chosen.issuer,
        chosen.client_id,
        None if chosen.client_secret is None else chosen.client_secret.get_secret_value(),
        {
            group: Group(frozenset(map(Scope, scopes)), Names(tuple(chosen.names.get(group, ()))))
            for group, scopes in chosen.scopes.items()
        },
        groups_claim=chosen.groups_claim,
        request_scopes=chosen.request_scopes,
    )


def open_authenticator(settings: Settings, store: TokenStore) -> Authenticator:
    """The authenticator of the settings' and the store's tokens; open to the loopback, if there never was a token."""
    fixed = {
        "PACELINE_API_TOKEN": (settings.api_token, frozenset({Scope.READ, Scope.ASSIGN, Scope.SEND})),
        "PACELINE_ADMIN_TOKEN": (settings.admin_token, frozenset({Scope.ADMIN})),
    }
    return Authenticator(
        store,
        [Token(name, scopes, digest(secret.get_secret_value())) for name, (secret, scopes) in fixed.items() if secret],
        local=is_loopback(settings.host) and settings.oidc.issuer is None,
    )
