"""Scopes and secrets: what a token allows, and what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paceline.errors import ConfigurationError
from paceline.server.access.model import (
    Caller,
    Keyring,
    Scope,
    Token,
    checked_rate,
    digest,
    needed_scope,
    new_secret,
    refusal,
)
from paceline.server.access.names import Names

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


@pytest.mark.parametrize(
    ("method", "path", "may"),
    [
        ("GET", "/admin/plans", True),
        ("PUT", "/admin/plans/team-a-x", True),  # the plans check the name
        ("GET", "/api/v1/slots/x/y", True),
        ("POST", "/admin/rate-limit/config", True),
        ("GET", "/metrics", True),
        ("POST", "/admin/rate-limit/cache/flush", False),
        ("GET", "/admin/audit", False),
        ("DELETE", "/admin/sessions/x", False),
        ("GET", "/api/v1/invoices", False),
        ("GET", "/api/v1/slotsx", False),
        ("GET", "/admin/plansx", False),
    ],
)
def test_callers_with_names_have_the_paths_that_are_divided_by_names(method: str, path: str, may: bool) -> None:
    caller = Token("t", frozenset({Scope.ADMIN}), digest("a"), names=Names(("team-a-*",))).caller
    assert (refusal(caller, method, path) is None) is may
    assert refusal(Caller("t", frozenset({Scope.ADMIN})), method, path) is None


def test_a_scope_is_needed_whatever_the_names() -> None:
    caller = Caller("t", frozenset({Scope.READ}), Names(("team-a-*",)))
    assert "scope view" in str(refusal(caller, "GET", "/admin/plans"))


@pytest.mark.parametrize("rate", ["often", "", "0/second"])
def test_a_tokens_rate_is_a_rate(rate: str) -> None:
    with pytest.raises(ConfigurationError, match="rate"):
        checked_rate(rate)
    assert checked_rate(None) is None
    assert checked_rate("100/second") == "100/second"
