"""Tokens: what they allow, how they are compared, what happens when their store is down."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from paceline.errors import InvalidInput, StoreUnavailable
from paceline.server.access.authenticator import (
    REREAD_SECONDS,
    TOKEN_CACHE_SECONDS,
    Authenticator,
    create_token,
    rotate_token,
)
from paceline.server.access.model import ANYONE, Scope, Token, digest
from paceline.testing import FakeClock

NOW = datetime(2027, 3, 1, tzinfo=UTC)


class Tokens:
    """A token store that can be taken away."""

    def __init__(self) -> None:
        self.kept: dict[str, Token] = {}
        self.away = False
        self.reads = 0

    async def add(self, token: Token) -> Token:
        self.kept[token.name] = token
        return token

    async def rotate(self, name: str, digest: str, overlap: timedelta) -> Token:
        earlier = self.kept[name]
        until = NOW + overlap
        self.kept[name] = replace(earlier, digest=digest, earlier_digest=earlier.digest, earlier_until=until)
        return self.kept[name]

    async def revoke(self, name: str) -> Token:
        token = self.kept[name]
        self.kept[name] = Token(name, token.scopes, token.digest, NOW, NOW)
        return self.kept[name]

    async def tokens(self) -> list[Token]:
        self.reads += 1
        if self.away:
            raise StoreUnavailable
        return list(self.kept.values())


async def test_without_tokens_anyone_may_and_the_first_one_closes_the_gate() -> None:
    store, clock = Tokens(), FakeClock(NOW)
    authenticator = Authenticator(store, clock=clock)
    assert await authenticator.caller("") is ANYONE
    secret, _ = await create_token(store, "first", ["read"])
    clock.advance(TOKEN_CACHE_SECONDS + 0.001)
    assert await authenticator.caller("") is None
    assert await authenticator.caller(secret) is not None


async def test_a_gate_that_was_closed_does_not_open_when_the_last_token_is_revoked() -> None:
    store, clock = Tokens(), FakeClock(NOW)
    authenticator = Authenticator(store, clock=clock)
    secret, _ = await create_token(store, "last", ["admin"])
    assert await authenticator.caller(secret) is not None
    await store.revoke("last")
    clock.advance(TOKEN_CACHE_SECONDS + 0.001)
    for presented in (secret, ""):
        assert await authenticator.caller(presented) is None
    assert await Authenticator(store, clock=clock).caller("") is None  # nor after a restart
    store.kept.clear()
    clock.advance(TOKEN_CACHE_SECONDS + 0.001)
    assert await authenticator.caller("") is None
    assert await Authenticator(store, clock=clock).caller("") is ANYONE


async def test_a_gate_that_others_can_reach_is_never_open() -> None:
    authenticator = Authenticator(Tokens(), clock=FakeClock(NOW), local=False)
    assert await authenticator.caller("") is None
    assert not authenticator.is_open
    assert await Authenticator(None, local=False).caller("") is None
    assert await Authenticator(None).caller("") is ANYONE


async def test_a_revoked_token_is_good_for_five_seconds_at_most() -> None:
    store, clock = Tokens(), FakeClock(NOW)
    authenticator = Authenticator(store, [Token("fixed", frozenset({Scope.ADMIN}), digest("fixed"))], clock)
    secret, _ = await create_token(store, "temp", ["read", "ASSIGN"])
    assert await authenticator.caller(secret) is not None
    await store.revoke("temp")
    assert await authenticator.caller(secret) is not None
    assert store.reads == 1
    clock.advance(TOKEN_CACHE_SECONDS + 0.001)
    assert await authenticator.caller(secret) is None
    assert await authenticator.caller("fixed") is not None


async def test_a_new_token_is_known_at_once_and_guessing_costs_few_reads() -> None:
    store, clock = Tokens(), FakeClock(NOW)
    authenticator = Authenticator(store, [Token("fixed", frozenset({Scope.ADMIN}), digest("fixed"))], clock)
    assert await authenticator.caller("guess") is None
    secret, _ = await create_token(store, "new", ["read"])
    clock.advance(REREAD_SECONDS + 0.001)
    assert await authenticator.caller(secret) is not None
    for _ in range(100):
        assert await authenticator.caller("guess") is None
    assert store.reads == 2


async def test_when_the_store_is_away_known_tokens_stay_good_and_nobody_new_comes_in() -> None:
    store, clock = Tokens(), FakeClock(NOW)
    authenticator = Authenticator(store, clock=clock)
    secret, _ = await create_token(store, "known", ["read"])
    assert await authenticator.caller(secret) is not None
    store.away = True
    clock.advance(TOKEN_CACHE_SECONDS + 0.001)
    assert await authenticator.caller(secret) is not None
    assert await authenticator.caller("other") is None
    with pytest.raises(StoreUnavailable):
        await Authenticator(store, clock=clock).caller("")


@pytest.mark.parametrize(
    ("name", "scopes", "field"),
    [
        ("", ["read"], "name"),
        ("a b", ["read"], "name"),
        ("x" * 65, ["read"], "name"),
        ("anyone", ["read"], "name"),
        ("Anyone", ["read"], "name"),
        ("PACELINE_ADMIN_TOKEN", ["read"], "name"),
        ("paceline_x", ["read"], "name"),
        ("cli:root", ["read"], "name"),
        ("t", [], "scope"),
        ("t", ["root"], "scope"),
    ],
)
async def test_wrong_names_and_scopes_are_refused_by_field(name: str, scopes: list[str], field: str) -> None:
    store = Tokens()
    with pytest.raises(InvalidInput) as refusal:
        await create_token(store, name, scopes)
    assert refusal.value.field == field
    assert store.kept == {}


async def test_a_token_ends_when_its_time_is_over_and_an_earlier_secret_after_its_overlap() -> None:
    clock = FakeClock(NOW)
    store = Tokens()
    secret, _ = await create_token(store, "brief", ["read"], expires_at=NOW + timedelta(days=2))
    authenticator = Authenticator(store, clock=clock)
    assert await authenticator.caller(secret) is not None
    renewed, _ = await rotate_token(store, "brief", timedelta(hours=1))
    clock.advance(10)  # the cache's time
    assert [bool(await authenticator.caller(token)) for token in (secret, renewed)] == [True, True]
    clock.advance(3600)
    assert [bool(await authenticator.caller(token)) for token in (secret, renewed)] == [False, True]
    clock.advance(2 * 86_400)
    assert [bool(await authenticator.caller(token)) for token in (secret, renewed)] == [False, False]
    assert not await authenticator.keyring()
