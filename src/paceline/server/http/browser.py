"""A browser's request: the session's cookie, the origin of its page, the host's name."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache

from starlette.types import Scope

from paceline.server.http.problem import Problem

COOKIE = "paceline-session"
SECURE_COOKIE = "__Host-paceline-session"
"""Browsers accept a cookie with this prefix only from the host itself, and only over TLS."""

BROWSER_FIELDS = frozenset({b"sec-fetch-site", b"origin"})
"""Fields in which a browser sends the origin of a request's page. Without any, the origin is unknown."""
LONGEST_HOST = 300
"""A name of 255 characters, and its port: the longest that a browser sends."""


class Origin(Enum):
    """The origin of the page that made a request."""

    OWN = "own"
    OTHER = "other"
    UNKNOWN = "unknown"
    """No browser, or a read by one from before 2020."""


def origin(scope: Scope, *, reading: bool = False) -> Origin:
    """The origin of the page that made this request, by header fields that no page can set. Unknown if a user typed the
    address, which only reads."""
    site = source = host = b""
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            site = value
        elif name == b"origin":
            source = value
        elif name == b"host":
            host = value
    if reading and site == b"none":
        site = b""
    if site and site != b"same-origin":
        return Origin.OTHER
    if source:
        # Only the host: behind a proxy that ends TLS the scheme differs.
        return Origin.OWN if host and source.lower().partition(b"://")[2] == host.lower() else Origin.OTHER
    return Origin.OWN if site else Origin.UNKNOWN


def refuse_other_sites(scope: Scope, *, with_cookie: bool, reading: bool = False) -> None:
    """Raises 403 for a request of another site's page (CSRF).

    Browsers send cookies by themselves, so with one the origin must be known to be our own.
    """
    source_page = origin(scope, reading=reading)
    if source_page is Origin.OTHER or (with_cookie and source_page is Origin.UNKNOWN):
        detail = "a browser's requests must come from the console itself; other programs send Authorization: Bearer"
        raise Problem(403, "cross-site", "Cross-Site Request", detail)


@lru_cache(256)
def is_local_name(host: bytes) -> bool:
    """Whether the field `Host` has a name of this machine that no one else can own."""
    name = re.sub(r":\d*$", "", host.decode("latin-1")).strip("[]").rstrip(".").lower()
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return "." not in name or name.endswith(".localhost")


def session_secret(scope: Scope) -> str | None:
    """The secret in the session's cookie."""
    prefix = _name(scope).encode() + b"="
    for name, value in scope["headers"]:
        if name == b"cookie":
            for pair in value.split(b";"):
                if pair.strip().startswith(prefix):
                    return str(pair.strip()[len(prefix) :].decode("latin-1"))
    return None


def session_cookie(scope: Scope, secret: str, expires_at: datetime) -> str:
    """The `Set-Cookie` that logs in: not readable by scripts, not sent from other sites, with TLS only encrypted."""
    seconds = max(0, int((expires_at - datetime.now(UTC)).total_seconds()))
    return f"{_name(scope)}={secret}; Max-Age={seconds}; {_attributes(scope)}"


def ended_cookie(scope: Scope) -> str:
    """The `Set-Cookie` that logs out."""
    return f"{_name(scope)}=; Max-Age=0; {_attributes(scope)}"


def _name(scope: Scope) -> str:
    return SECURE_COOKIE if scope.get("scheme") == "https" else COOKIE


def _attributes(scope: Scope) -> str:
    return "Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if scope.get("scheme") == "https" else "")
