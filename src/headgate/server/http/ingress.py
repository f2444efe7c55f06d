"""The service's own limits, kept by its own limiter: how often a caller may ask, how often an address may guess."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from time import monotonic

import structlog
from starlette.types import Scope

from headgate.errors import StoreError
from headgate.limits import addresses, headers
from headgate.limits.limiter import AsyncLimiter
from headgate.limits.model import Decision
from headgate.server.access.model import ANYONE, Caller
from headgate.server.http.problem import Problem
from headgate.server.wiring.ingress import INGRESS, INGRESS_FAILURES, INGRESS_LOGINS

EXEMPT = ("/health/", "/q/health/", "/metrics", "/q/metrics")
"""Paths that machines poll: an orchestrator must not take a busy service for a dead one."""
SESSION = "/console/session"
FILES = "/console/"
"""The console's files: many at once, small, and the same for everybody."""
MOST_REMEMBERED = 10_000
TELL_EVERY_SECONDS = 10.0
LARGE_BODY = 64 * 1024
IPV6_PREFIX = 64


class Ingress:
    """Holds callers to the limiter's plans `ingress` and `ingress-failures`, if it has them.

    A caller is a token's name or, where no token is asked for, the client's address. Failed attempts to authenticate
    count against the address alone. While it has too many, no secret it has not used before is believed, the right one
    neither, or guessing would go on at full speed; whoever was known there before is not locked out with the guesser.
    """

    def __init__(self, limiter: AsyncLimiter | None = None) -> None:
        plans = {} if limiter is None else limiter.plans
        self._rate = limiter if INGRESS in plans else None
        self._guesses = limiter if INGRESS_FAILURES in plans else None
        self._known: dict[tuple[str, str], None] = {}
        self._told: dict[str, float] = {}
        self._log = structlog.get_logger()

    async def admit(self, scope: Scope, caller: Caller) -> None:
        """Counts a request; raises the refusal if its caller has asked too often."""
        if self._guesses is not None and caller is not ANYONE:
            await self._recognise(self._guesses, scope, caller.name)
        if self._rate is not None and not _is_exempt(scope["path"]):
            key = f"address:{client_address(scope)}" if caller is ANYONE else f"token:{caller.name}"
            await self._hold(self._rate, self._rate.acquire(key, INGRESS), key, scope)

    async def failed(self, scope: Scope) -> Problem | None:
        """Counts a secret that is nobody's; the refusal, if its address has sent too many."""
        if self._guesses is None:
            return None
        key = f"address:{client_address(scope)}"
        try:
            await self._hold(self._guesses, self._guesses.acquire(key, INGRESS_FAILURES), key, scope)
        except Problem as refusal:
            return refusal
        return None

    async def logging_in(self, scope: Scope) -> None:
        """Counts an attempt to log in, before it is known what comes of it; raises the refusal if its address has made
        too many."""
        if self._guesses is None:
            return
        key = f"address:{client_address(scope)}"
        await self._hold(self._guesses, self._guesses.acquire(key, INGRESS_LOGINS), key, scope)

    async def logged_in(self, scope: Scope) -> None:
        """Takes the attempt back: it was not a guess."""
        if self._guesses is not None:
            try:
                await self._guesses.refund(f"address:{client_address(scope)}", INGRESS_LOGINS)
            except StoreError as error:
                self._tell("store", "the service's own limits can't be kept", error=repr(error))

    async def _recognise(self, limiter: AsyncLimiter, scope: Scope, name: str) -> None:
        address = client_address(scope)
        if (address, name) in self._known:
            return
        key = f"address:{address}"
        await self._hold(limiter, limiter.peek(key, INGRESS_FAILURES), key, scope)
        if len(self._known) >= MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[address, name] = None

    async def _hold(self, limiter: AsyncLimiter, deciding: Awaitable[Decision], key: str, scope: Scope) -> None:
        """Raises the refusal if the decision is one. Whatever is wrong with the store, also a password it refuses,
        everybody passes: what the service is for does not depend on this."""
        try:
            decision = await deciding
        except StoreError as error:
            self._tell("store", "the service's own limits can't be kept", error=repr(error))
            return
        if not decision.allowed:
            wait = headers.retry_after(decision)
            self._tell(key, "caller refused: too many requests", caller=key, plan=decision.plan, wait=wait)
            raise _refusal(limiter, decision, key, scope)

    def _tell(self, about: str, what: str, **more: object) -> None:
        """A warning, every ten seconds at most."""
        now = monotonic()
        if now - self._told.get(about, -TELL_EVERY_SECONDS) >= TELL_EVERY_SECONDS:
            if len(self._told) >= MOST_REMEMBERED:
                self._told.clear()
            self._told[about] = now
            self._log.warning(what, **more)


def _refusal(limiter: AsyncLimiter, decision: Decision, key: str, scope: Scope) -> Problem:
    told = dict(headers.fields(decision, [limiter.rule(decision.plan, key)]))
    if _is_large(scope):
        told["Connection"] = "close"  # rather than read, for nothing, what is still to come
    refusal = Problem(429, "quota-exceeded", headers.TITLE, "", headers=told)
    refusal.body = headers.problem(decision)
    return refusal


def client_address(scope: Scope) -> str:
    """Who is at the other end: an IPv4 address, or the /64 that one IPv6 subscriber has. The server has looked behind
    trusted proxies already."""
    client = scope.get("client")
    return _block(client[0]) if client else addresses.UNIX


@lru_cache(4096)
def _block(text: str) -> str:
    address = addresses.parse(text)
    return text[:64] if address is None else addresses.block(address, IPV6_PREFIX)


def _is_exempt(path: str) -> bool:
    return path.startswith(EXEMPT) or (path.startswith(FILES) and path != SESSION)


def _is_large(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"transfer-encoding" or (name == b"content-length" and int(value) > LARGE_BODY):
            return True
    return False
