"""The service's own limits, kept by its own limiter: requests per caller, failed authentications per address."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from time import monotonic

import structlog
from starlette.types import Scope

from paceline.errors import StoreError
from paceline.limits import addresses, headers
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision
from paceline.server.access.model import ANYONE, Caller
from paceline.server.http.problem import Problem
from paceline.server.settings import LONG_SECRET
from paceline.server.wiring.ingress import INGRESS, INGRESS_FAILURES, INGRESS_LOGINS

EXEMPT = ("/health/", "/q/health/", "/metrics", "/q/metrics")
"""Paths that machines poll: an orchestrator must not consider a busy service dead."""
SESSION = "/console/session"
FILES = "/console/"
"""The console's files: many at once, small, and the same for all callers."""
MAX_REMEMBERED = 10_000
WARN_EVERY_SECONDS = 10.0
LARGE_BODY = 64 * 1024


class Ingress:
    """Applies the limiter's plans `ingress` and `ingress-failures` to callers, if it has them, and a token's own rate.

    A caller is a token's name or, where no token is required, the client's address. Failed attempts to authenticate
    count against the address alone, and only further failures are refused: a valid token is served, even if others
    guess from its address. That helps no attacker, because a secret of `LONG_SECRET` characters can't be guessed. A
    shorter one, which only the settings of a service on the loopback can have, could be: while its address has too many
    failures, it is accepted only if it was used there before.
    """

    def __init__(self, limiter: AsyncLimiter | None = None) -> None:
        plans = {} if limiter is None else limiter.plans
        self._limiter = limiter
        self._rate = limiter if INGRESS in plans else None
        self._guesses = limiter if INGRESS_FAILURES in plans else None
        self.counts_requests = self._rate is not None
        """Whether there is a limit for requests without a token."""
        self._known: dict[tuple[str, str], None] = {}
        self._last_warned: dict[str, float] = {}
        self._log = structlog.get_logger()

    async def admit(self, scope: Scope, caller: Caller, *, secret: str | None = None) -> None:
        """Counts a request; raises 429 if its caller made too many. `secret` is the request's token."""
        if self._guesses is not None and secret is not None and len(secret) < LONG_SECRET:
            await self._recognise(self._guesses, scope, caller.name)
        if self._rate is not None and not _is_exempt(scope["path"]):
            key = f"address:{client_address(scope)}" if caller is ANYONE else f"token:{caller.name}"
            await self._enforce(self._rate, self._rate.acquire(key, INGRESS), key, scope)
        if caller.rate is not None and self._limiter is not None and not _is_exempt(scope["path"]):
            key = f"token:{caller.name}"
            await self._enforce(self._limiter, self._limiter.acquire(key, caller.rate), key, scope)

    async def record_failure(self, scope: Scope) -> Problem | None:
        """Counts a failed authentication; returns the 429 if its address made too many."""
        if self._guesses is None:
            return None
        key = f"address:{client_address(scope)}"
        try:
            await self._enforce(self._guesses, self._guesses.acquire(key, INGRESS_FAILURES), key, scope)
        except Problem as refusal:
            return refusal
        return None

    async def record_failed_login(self, scope: Scope) -> None:
        """Counts a failed login; raises 429 if its address made too many."""
        if self._guesses is not None:
            key = f"address:{client_address(scope)}"
            await self._enforce(self._guesses, self._guesses.acquire(key, INGRESS_LOGINS), key, scope)

    async def admit_short_login(self, scope: Scope) -> None:
        """Raises 429 for a login with a short token from an address with too many failed ones."""
        if self._guesses is not None:
            key = f"address:{client_address(scope)}"
            await self._enforce(self._guesses, self._guesses.peek(key, INGRESS_LOGINS), key, scope)

    async def _recognise(self, limiter: AsyncLimiter, scope: Scope, name: str) -> None:
        address = client_address(scope)
        if (address, name) in self._known:
            return
        key = f"address:{address}"
        await self._enforce(limiter, limiter.peek(key, INGRESS_FAILURES), key, scope)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[address, name] = None

    async def _enforce(self, limiter: AsyncLimiter, decision_call: Awaitable[Decision], key: str, scope: Scope) -> None:
        """Raises 429 if the decision is a denial. If the store fails in any way, including a refused password, every
        request passes (fail open): the service does not depend on this limit."""
        try:
            decision = await decision_call
        except StoreError as error:
            self._warn("store", "the service's own limits can't be kept", error=repr(error))
            return
        if not decision.allowed:
            wait = headers.retry_after(decision)
            self._warn(key, "caller refused: too many requests", caller=key, plan=decision.plan, wait=wait)
            raise _refusal(limiter, decision, key, scope)

    def _warn(self, about: str, what: str, **more: object) -> None:
        """Logs a warning, at most every ten seconds per subject."""
        now = monotonic()
        if now - self._last_warned.get(about, -WARN_EVERY_SECONDS) >= WARN_EVERY_SECONDS:
            if len(self._last_warned) >= MAX_REMEMBERED:
                self._last_warned.clear()
            self._last_warned[about] = now
            self._log.warning(what, **more)


def _refusal(limiter: AsyncLimiter, decision: Decision, key: str, scope: Scope) -> Problem:
    fields = dict(headers.fields(decision, [limiter.rule(decision.plan, key)]))
    if _is_large(scope):
        fields["Connection"] = "close"  # so that the rest of the body need not be read
    refusal = Problem(429, "quota-exceeded", headers.TITLE, "", headers=fields)
    refusal.body = headers.problem(decision)
    return refusal


def client_address(scope: Scope) -> str:
    """The client's IPv4 address, or the /64 of an IPv6 subscriber. The server has resolved trusted proxies already."""
    client = scope.get("client")
    return _block(client[0]) if client else addresses.UNIX


@lru_cache(4096)
def _block(text: str) -> str:
    address = addresses.parse(text)
    return text[:64] if address is None else addresses.block(address)


def _is_exempt(path: str) -> bool:
    return path.startswith(EXEMPT) or (path.startswith(FILES) and path != SESSION)


def _is_large(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"transfer-encoding" or (name == b"content-length" and int(value) > LARGE_BODY):
            return True
    return False
