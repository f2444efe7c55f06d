"""The machine's certificates, loaded once for all HTTP clients of a process instead of once for each.

Loading them takes longer than all that most tests do with a client, and most of them speak to services without TLS.
"""

from __future__ import annotations

import os
import ssl
from functools import cache

import httpcore2

_load = httpcore2.default_ssl_context


def share() -> None:
    """From now on, clients that are given no certificates of their own have one context."""
    httpcore2.default_ssl_context = _context


def _context(*, _trust_env: bool = True) -> ssl.SSLContext:
    named = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _loaded(_trust_env, named if _trust_env else None)


@cache
def _loaded(trust_env: bool, _named: tuple[str | None, str | None] | None) -> ssl.SSLContext:
    return _load(_trust_env=trust_env)
