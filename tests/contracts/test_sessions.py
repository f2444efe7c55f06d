"""Sessions belong to a token, and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from paceline.server.access.authenticator import Authenticator, create_token
from paceline.server.access.model import ANYONE, Caller, Scope, Token, digest
from paceline.server.access.sessions import Sessions
from paceline.server.access.stores.sql import SqlAccessStore
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store

DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlAccessStore]:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    async with open_access_store(Settings(database_url=url)) as opened:
        yield opened


def sessions(store: SqlAccessStore, *fixed: Token, lifetime: timedelta = DAY) -> Sessions:
    """As each process has them: with a gate of its own."""
    return Sessions(store.sessions, Authenticator(store, fixed), lifetime)


async def test_a_session_is_known_in_every_process_until_it_is_closed_in_one(store: SqlAccessStore) -> None:
    secret, _ = await create_token(store, "operator", ["read"])
    here, there = sessions(store), sessions(store)
    login = await here.open(secret)
    assert login is not None
    assert login.secret not in ("", secret)
    found = await there.find(login.secret)
    assert found is not None
    assert found.caller == Caller("operator", frozenset({Scope.READ}))
    assert found.expires_at == login.expires_at
    await there.close(login.secret)
    assert await here.find(login.secret) is None


async def test_a_session_ends_with_its_token_at_once(store: SqlAccessStore) -> None:
    secret, _ = await create_token(store, "operator", ["admin"])
    await create_token(store, "other", ["admin"])
    held = sessions(store)
    login = await held.open(secret)
    assert login is not None
    assert await held.find(login.secret) is not None
    await store.revoke("operator")
    assert await held.find(login.secret) is None
    assert await held.open(secret) is None


async def test_a_session_ends_when_its_time_is_over(store: SqlAccessStore) -> None:
    secret, _ = await create_token(store, "operator", ["admin"])
    brief = sessions(store, lifetime=timedelta(0))
    login = await brief.open(secret)
    assert login is not None
    assert await brief.find(login.secret) is None
    assert await sessions(store).open(secret) is not None  # and the next login deletes it
    assert await store.sessions.find(digest(login.secret)) is None


async def test_a_session_does_not_outlive_the_secret_of_a_token_from_the_settings(store: SqlAccessStore) -> None:
    def fixed(secret: str) -> Token:
        return Token("PACELINE_ADMIN_TOKEN", frozenset({Scope.ADMIN}), digest(secret))

    login = await sessions(store, fixed("before")).open("before")
    assert login is not None
    assert await sessions(store, fixed("before")).find(login.secret) is not None
    assert await sessions(store, fixed("after")).find(login.secret) is None


async def test_nobody_gets_in_with_what_is_kept_or_made_up(store: SqlAccessStore) -> None:
    secret, token = await create_token(store, "operator", ["admin"])
    held = sessions(store)
    login = await held.open(secret)
    assert login is not None
    kept = await store.sessions.find(digest(login.secret))
    assert kept is not None
    assert login.secret not in kept
    for presented in ("", secret, token.digest, kept.digest, kept.seal, login.secret + "x", login.secret[:-1], "\xff"):
        assert await held.find(presented) is None, presented
    for presented in ("", token.digest, "operator", login.secret):
        assert await held.open(presented) is None, presented


async def test_nobody_is_in_once_the_last_token_is_revoked(store: SqlAccessStore) -> None:
    secret, _ = await create_token(store, "operator", ["admin"])
    held = sessions(store)
    login = await held.open(secret)
    assert login is not None
    await store.revoke("operator")
    for each in (held, sessions(store)):
        assert await each.open("anything") is None
        assert await each.find("") is None
        assert await each.find(login.secret) is None


async def test_without_tokens_anybody_is_in_and_no_session_is_kept(store: SqlAccessStore) -> None:
    login = await sessions(store).open("anything")
    assert login is not None
    assert (login.caller, login.secret, login.expires_at) == (ANYONE, "", None)
    assert await sessions(store).find("") == login
