"""Scopes and secrets: what a token allows, and what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paceline.server.access.model import Keyring, Scope, Token, digest, needed_scope, new_secret

NOW = datetime(2027, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/admin/plans", Scope.VIEW),
        ("POST", "/admin/dispatch/PAYMENT/requeue", Scope.OPERATE),
        ("PATCH", "/admin/dispatch/PAYMENT", Scope.OPERATE),
        ("PATCH", "/admin/dispatch/PAYMENT/items", Scope.ADMIN),
        ("POST", "/admin/rate-limit/config", Scope.ADMIN),
        ("GET", "/api/v1/slots/x", Scope.READ),
        ("POST", "/api/v1/slots", Scope.ASSIGN),
        ("DELETE", "/api/v1/slots/x", Scope.ASSIGN),
        ("POST", "/api/v1/payments/bulk", Scope.ASSIGN),
        ("POST", "/api/send", Scope.SEND),
        ("POST", "/api/config", Scope.SEND),
        ("GET", "/metrics", None),
        ("GET", "/", None),
    ],
)
def test_each_path_needs_its_scope(method: str, path: str, scope: Scope | None) -> None:
    assert needed_scope(method, path) is scope


def test_secrets_are_long_and_only_their_digest_is_kept() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(len(secret) > 40 for secret in secrets)
    token = Token("t", frozenset({Scope.READ}), digest("hunter2"))
    assert "hunter2" not in repr(token)


def test_revoked_tokens_open_nothing() -> None:
    good = Token("good", frozenset({Scope.READ}), digest("a"))
    gone = Token("gone", frozenset({Scope.ADMIN}), digest("b"), NOW, NOW)
    keyring = Keyring([good, gone])
    caller = keyring.caller("a")
    assert caller is not None
    assert caller.may(Scope.READ)
    assert not caller.may(Scope.ADMIN)
    assert keyring.caller("b") is None
    assert keyring.caller("") is None
    assert not Keyring([gone])


def test_admin_may_everything() -> None:
    caller = Keyring([Token("root", frozenset({Scope.ADMIN}), digest("a"))]).caller("a")
    assert caller is not None
    assert all(caller.may(scope) for scope in Scope)
