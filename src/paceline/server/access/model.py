"""Tokens and what they allow. Pure: secrets are compared by digest, in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from paceline.clock import Clock, SystemClock
from paceline.durations import EPOCH
from paceline.errors import InvalidInput
from paceline.limits.rates import parse_rates
from paceline.server.access.names import EVERY_NAME, Names
from paceline.server.apps import scope_of_path

PREFIX = "pl_"
"""Marks a secret as paceline's, so that secret scanners find a leaked one."""
RESERVED_PREFIX = "paceline_"
"""In upper case, how the names of the settings' tokens start."""


class Scope(StrEnum):
    """What a token permits."""

    READ = "read"
    """GET under `/api`."""
    ASSIGN = "assign"
    """Book slots, decide limits, submit work."""
    SEND = "send"
    """Send through an application, and configure whom it sends to."""
    VIEW = "view"
    """For people: see everything, and change nothing."""
    OPERATE = "operate"
    """For people: see everything, and retry, requeue, cancel and pause work."""
    ADMIN = "admin"
    """Everything."""


_INCLUDED = {
    Scope.VIEW: {Scope.READ},
    Scope.OPERATE: {Scope.READ, Scope.VIEW},
    Scope.ADMIN: set(Scope),
}
OPERATIONS = re.compile(
    r"/admin/dispatch/[^/]+(/(requeue|discard|cancel|reschedule|resolve))?|/admin/downstreams/[^/]+"
    r"|/admin/periodic/[^/]+/trigger|/admin/rate-limit/cache/flush"
)
"""What an operator may call, beside what applications name (`App.scopes`)."""
DIVIDED = re.compile(
    r"/api/v1/(slots|limits|remote)(/.*)?|/api/v1/(forecast|search)|/api/v1/console/(overview|history|heat-map|page|stream)"
    r"|/admin/(plans|dispatch|downstreams|periodic)(/.*)?|/admin/(remote|workers|flow|rate-limit/config(s|/history)?)"
)
"""What shows and changes each team its own: what callers may call whose tokens are bound to names. Their services
(`paceline.server.bound`) know no others."""


@cache
def granted(scopes: frozenset[Scope]) -> frozenset[Scope]:
    """These scopes, and those that they include."""
    return scopes.union(*(_INCLUDED.get(scope, set()) for scope in scopes))


@dataclass(frozen=True, slots=True)
class Token:
    """A named token as it is stored: with the digest of its secret."""

    name: str
    scopes: frozenset[Scope]
    digest: str
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    earlier_digest: str | None = None
    """Of the secret before the last rotation."""
    earlier_until: datetime | None = None
    names: Names = EVERY_NAME
    """What it is bound to."""
    rate: str | None = None
    """How often it may be used."""

    def matches(self, presented: str, now: datetime) -> bool:
        """Whether a secret of this digest is valid now."""
        if self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now):
            return False
        if hmac.compare_digest(presented, self.digest):
            return True
        if self.earlier_digest is None or self.earlier_until is None or self.earlier_until <= now:
            return False
        return hmac.compare_digest(presented, self.earlier_digest)

    @property
    def caller(self) -> Caller:
        """Who calls with it."""
        return Caller(self.name, self.scopes, self.names, self.rate)

    def is_good(self, now: datetime) -> bool:
        """Whether it is valid now."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class Caller(NamedTuple):
    """The token a request was made with, by name, and its scopes."""

    name: str
    scopes: frozenset[Scope]
    names: Names = EVERY_NAME
    rate: str | None = None
    """How often the token may be used, beside the limits of the service for all callers."""

    def may(self, scope: Scope) -> bool:
        return scope in granted(self.scopes)


class Person(NamedTuple):
    """Somebody without a token, whom an identity provider has authenticated."""

    name: str
    """One per account of the provider: two people never share it."""
    groups: tuple[str, ...]
    """As the provider says now."""
    renewal: str | None = None
    """What the provider wants to see when it is asked again; None if it can't be asked without the person."""


ANYONE = Caller("anyone", frozenset(Scope))
"""The caller of every request, where no token is required."""


class Keyring:
    """The valid tokens."""

    def __init__(self, tokens: Iterable[Token], clock: Clock | None = None) -> None:
        known = list(tokens)
        self.had_any = bool(known)
        """Whether there ever was a token, revoked ones included."""
        self._tokens = [token for token in known if token.revoked_at is None]
        self._clock = clock or SystemClock()

    def __bool__(self) -> bool:
        now = self._now()
        return any(token.is_good(now) for token in self._tokens)

    def caller(self, secret: str) -> Caller | None:
        """The caller with this secret."""
        token = self.token(secret)
        return None if token is None else token.caller

    def token(self, secret: str) -> Token | None:
        """The token with this secret. All tokens are compared, in constant time, against timing attacks."""
        presented, now = digest(secret), self._now()
        match: Token | None = None
        for token in self._tokens:
            if token.matches(presented, now):
                match = token
        return match

    def named(self, name: str) -> Token | None:
        """The token of this name."""
        now = self._now()
        return next((token for token in self._tokens if token.name == name and token.is_good(now)), None)

    def _now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self._clock.now_us())


LOOKS = "/api/v1/remote/look"
"""Where other programs call methods that change nothing."""


def needed_scope(method: str, path: str) -> Scope | None:
    """The scope a request needs; None if it needs no token."""
    is_read, is_admin = method in ("GET", "HEAD", "OPTIONS"), path.startswith("/admin")
    if not is_admin and not path.startswith("/api"):
        return None
    if is_read or path == LOOKS:
        return Scope.VIEW if is_admin else Scope.READ
    if (scope := scope_of_path(path)) is not None:
        return Scope(scope)
    if is_admin:
        return Scope.OPERATE if OPERATIONS.fullmatch(path) else Scope.ADMIN
    return Scope.ASSIGN


def refusal(caller: Caller, method: str, path: str) -> str | None:
    """Why a caller may not make a request; None if they may."""
    needed = needed_scope(method, path)
    if needed is not None and not caller.may(needed):
        return f"this needs a token with the scope {needed.value}"
    if needed is not None and caller.names and not DIVIDED.fullmatch(path):
        return str(caller.names.refusal("this path is not divided by names"))
    return None


def new_secret() -> str:
    """A secret of 256 random bits: too many to guess, so a plain digest is enough to store."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """The form a secret is stored in."""
    return hashlib.sha256(secret.encode()).hexdigest()


def checked_token_name(name: str) -> str:
    """The token's name, which appears in audit rows and logs: short and plain.

    Raises:
        InvalidInput: the name is too long, has other characters, or is reserved.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise InvalidInput("name", "must be 1 to 64 letters, digits, dots, dashes or underscores")
    if name.lower() == ANYONE.name or name.lower().startswith(RESERVED_PREFIX):
        raise InvalidInput(
            "name",
            f"must not be {ANYONE.name!r} nor start with {RESERVED_PREFIX.upper()}: those have a meaning in the audit",
        )
    return name


def checked_rate(rate: str | None) -> str | None:
    """How often a token may be used, such as `100/second`.

    Raises:
        InvalidInput: it is no rate.
    """
    if rate is not None:
        parse_rates(rate, "rate")
    return rate


def checked_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    """The scopes of these names; at least one.

    Raises:
        InvalidInput: a name is unknown, or there is none.
    """
    try:
        names = frozenset(Scope(scope.lower()) for scope in scopes)
    except ValueError as error:
        raise InvalidInput("scope", f"{error}; known are {', '.join(Scope)}") from None
    if not names:
        raise InvalidInput("scope", f"is required; known are {', '.join(Scope)}")
    return names
