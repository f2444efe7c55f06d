"""Limits for any ASGI application: middleware with rules by path and method.

    app = RateLimitMiddleware(app, limiter, rules=[
        PathRule("/api/*", "gold", key=header("X-API-Key")),
        PathRule("/login", "logins", key=client_address(), methods=["POST"]),
    ])

All rules that match a request are one atomic decision. A WebSocket counts when it connects. Patterns are relative to
the application: `/login` matches also if the application is mounted, or served with a `root_path`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, Unpack
from urllib.parse import urlsplit

from paceline.errors import InvalidInput, NotFound, StoreUnavailable
from paceline.integrations.denial_bodies import own_body
from paceline.integrations.limit import Limit, OnDenied, PathRule, Response, check_rules, resolved
from paceline.integrations.request_limiter import (
    Admission,
    Refusal,
    RequestLimiter,
    ResponseCharge,
    ResponseOptions,
    error_refusal,
)
from paceline.integrations.route_patterns import (
    Route,
    app_with_routes,
    matching_route,
    starlette_routes,
    warn_of_unmatched,
)
from paceline.limits._blocking import Limiter
from paceline.limits.addresses import UNNAMED_PROXY
from paceline.limits.fast_path import FastPath
from paceline.limits.headers import RawFields, merge_raw, prepared_fields
from paceline.limits.keys import (
    KeyValue,
    client_address,
    composite,
    everyone,
    header,
    method,
    path,
    principal,
    route,
)
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision

__all__ = [
    "PathRule",
    "RateLimitMiddleware",
    "client_address",
    "composite",
    "everyone",
    "header",
    "method",
    "path",
    "principal",
    "route",
]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Principal: TypeAlias = Callable[[Any], KeyValue | Awaitable[KeyValue]]
Answer: TypeAlias = RawFields | Admission | Refusal
"""The fields alone, of a request that the fast path admitted."""
Decider: TypeAlias = Callable[[Scope], Answer | None]

DECISION = "rate_limit"
"""The attribute of `request.state` for the decision of a limit that does not block."""

STARTS = ("http.response.start", "websocket.accept")
TRY_LATER = 1013
"""The WebSocket close code "try again later"."""


class RateLimitMiddleware:
    """Limits requests by `rules` before the application sees them.

    `principal` finds the authenticated user from the scope; by default it is Starlette's `scope["user"]`.
    `partition_keys` adds `pk` to the RateLimit fields, `legacy_headers` adds `X-RateLimit-*`. `on_denied` makes the
    response of a denial from the scope and the decision: an ASGI application, or a body. Scopes other than HTTP and
    WebSocket pass.

    Raises:
        ConfigurationError: a rule names an unknown plan, or rules that always apply together have keys that never
            share a slot of the limiter's Redis Cluster.
    """

    def __init__(
        self,
        app: App,
        limiter: Limiter | AsyncLimiter,
        rules: Iterable[PathRule],
        *,
        principal: Principal | None = None,
        partition_keys: bool = False,
        legacy_headers: bool = False,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.app = app
        self.request_limiter = AsgiRequestLimiter(
            limiter, partition_keys=partition_keys, legacy_headers=legacy_headers, on_denied=on_denied
        )
        self.rules = check_rules(rules)
        self.request_limiter.require_rules(self.rules)
        self._principal = principal or user_of
        self._root_path = _own_root_path(app)
        self._splits = _splits_at_root_path(app)
        self._checked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._checked:
            self._checked = True  # at its lifespan or first request, the application has all its routes
            warn_of_unmatched(self.rules, lambda: _routes_of(self.app, scope))
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = AsgiRequest(scope, self._principal, self.app)
        method, path = request.method, route_path(scope, self._root_path, splits=self._splits)
        limits = [rule.limit for rule in self.rules if rule.applies(method, path)]
        if not limits:
            await self.app(scope, receive, send)
            return
        answer: Answer | Coroutine[Any, Any, Answer] | None = self.request_limiter.decider(limits)(scope)
        if answer is None:
            answer = self.request_limiter.admit_maybe_async(limits, request)
        if isinstance(answer, Coroutine):
            answer = await answer
        if isinstance(answer, Refusal):
            await self._refuse(answer, scope, receive, send)
        elif isinstance(answer, Admission):
            if answer.decision is not None:
                scope.setdefault("state", {})[DECISION] = answer.decision
            sending = with_fields(send, encoded(answer.fields))
            observer = ResponseObserver(self.request_limiter, scope, list(answer.charges))
            await (
                run_observed(self.app, scope, receive, sending, observer)
                if answer.charges
                else self.app(scope, receive, sending)
            )
        else:
            await self.app(scope, receive, with_fields(send, answer))

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        own = None
        if refusal.on_denied is not None and refusal.decision is not None and scope["type"] == "http":
            own = await resolved(refusal.on_denied(scope, refusal.decision))
        if callable(own):
            await own(scope, receive, with_fields(send, encoded(refusal.limit_fields), missing_only=True))
            return
        if own is not None:
            body, content_type = own_body(own)
            refusal = refusal._replace(body=body, fields=[*refusal.limit_fields, ("Content-Type", content_type)])
        await refuse(refusal, scope, send)


def route_path(scope: Scope, root_path: str = "", *, splits: bool = False) -> str:
    """The path without the prefix that the application is mounted or served under. Servers leave the prefix in the path
    (`--root-path`); a proxy may have removed it. With `splits`, the application serves what follows the prefix wherever
    it is in the path."""
    path, prefix = scope["path"], root_path or scope.get("root_path", "")
    if not path.startswith("/"):
        path = _origin_form(path)
    if not splits or not prefix:
        return _without(prefix, path)
    path = path.split(prefix, 1)[-1]
    return path if path.startswith("/") else f"/{path}"


def _without(root_path: str, path: str) -> str:
    return path[len(root_path) :] if root_path and f"{path}/".startswith(f"{root_path}/") else path


def _origin_form(target: str) -> str:
    """The path of a request target that is a URL, or that begins with no slash. Some servers put these into the scope
    as they came, and Quart and Litestar serve them."""
    try:
        return f"/{urlsplit(target).path.removeprefix('/')}"
    except ValueError:
        return target


def _own_root_path(app: Any) -> str:
    """The root path of a FastAPI application behind any middlewares, which it writes into the scope only later. Other
    frameworks mean something else by `root_path`: Quart's is a folder on the disk."""
    inner = app_with_routes(app)
    return inner.root_path if "fastapi.applications" in _modules(inner) else ""


def _splits_at_root_path(app: Any) -> bool:
    """Whether an application behind any middlewares is one of Litestar or Quart: under `/api` they serve `/apilogin` as
    `/login`, and Litestar, like older versions of Quart, also `/x/api/login`."""
    inner = app_with_routes(app)
    inner = getattr(inner, "__self__", inner)  # Quart's `asgi_app` is a method
    return not {"quart.app", "litestar.app"}.isdisjoint(_modules(inner))


def _modules(app: Any) -> set[str]:
    return {kind.__module__ for kind in type(app).__mro__}


def _routes_of(app: Any, scope: Scope) -> Iterator[Route]:
    """The routes of an application behind any middlewares; none if they are not known."""
    inner = app_with_routes(app)
    root_path = scope.get("root_path", "")
    is_mounted = scope.get("app_root_path", root_path) != root_path
    if not hasattr(inner, "routes") and not is_mounted:  # of a mounted one, the scope's application is a parent
        inner = scope.get("app")
    return starlette_routes(getattr(inner, "routes", ()))


class AsgiRequestLimiter(RequestLimiter):
    """A `RequestLimiter` with a fast path for decisions that need no `await`, and with fields as ASGI sends them."""

    def __init__(self, limiter: Limiter | AsyncLimiter, **options: Unpack[ResponseOptions]) -> None:
        super().__init__(limiter, **options)
        self._limit_paths: dict[Limit, _LimitPath] = {}
        self._deciders: dict[Limit, Decider] = {}

    def decider(self, limits: Sequence[Limit]) -> Decider:
        """The function that decides requests by their peer's address alone: returns `None`, and charges nothing, if
        that is not enough."""
        if len(limits) > 1:
            return no_decision
        decide = self._deciders.get(limits[0])
        if decide is None:
            decide = self._deciders[limits[0]] = self._new_decider(limits[0])
        return decide

    def _new_decider(self, limit: Limit) -> Decider:
        limiter = self._limiter
        # Local names: this runs for every request.
        fast_paths, fast_path, fields_of, from_peer = limit_path = self._new_limit_path(limit)
        last: tuple[Decision | None, RawFields | None] = (None, None)

        def decide(scope: Scope) -> Answer | None:
            nonlocal fast_paths, fast_path, fields_of, from_peer, limit_path, last
            if limiter.fast_paths is not fast_paths:  # the plans have changed
                limit_path = self._new_limit_path(limit)
                _, fast_path, fields_of, from_peer = limit_path
                fast_paths = limit_path.fast_paths  # last: another thread may be deciding
            peer = peer_of(scope)
            key = from_peer(peer) if peer else None
            decision = fast_path(key) if key is not None else None
            known, fields = last
            if decision is known:  # a full bucket's is always the same
                return fields
            if decision is None or key is None:
                return None
            if not decision.allowed:
                return self._respond(limit, limit_path, key, decision)
            fields = fields_of(decision)
            last = decision, fields
            return fields

        return decide

    def admit_maybe_async(self, limits: Sequence[Limit], request: AsgiRequest) -> Answer | Coroutine[Any, Any, Answer]:
        """Decides a request in an event loop: returns the answer, or its coroutine if the fast path can't decide."""
        limit = limits[0]
        limit_path = self._limit_paths.get(limit)
        if limit_path is None or limit_path.fast_paths is not self._limiter.fast_paths:
            limit_path = self._new_limit_path(limit)
        if limit_path.fast_path is _no_path or len(limits) > 1:
            return self.admit_async(limits, request)
        try:
            key = limit.key(request)
        except (InvalidInput, StoreUnavailable) as error:
            return error_refusal(error)
        decision = limit_path.fast_path(key) if isinstance(key, str) else None
        if decision is None:
            return self._admit_plain(limit, key)
        return self._respond(limit, limit_path, key, decision)  # type: ignore[arg-type]  # it is a string

    def _respond(self, limit: Limit, limit_path: _LimitPath, key: str, decision: Decision) -> Answer:
        if decision.allowed:
            return limit_path.fields_of(decision)
        return self._answer(decision, [(key, limit.plans[0])])

    def _new_limit_path(self, limit: Limit) -> _LimitPath:
        self._keep_rates(limit)
        fast_paths = self._limiter.fast_paths
        limit_path = _LimitPath(fast_paths)
        with_more_fields = self._partition_keys or self._legacy_headers
        plan = limit.plans[0] if limit.is_single and self._never_waits and not with_more_fields else ""
        if plan in fast_paths and plan not in self._limiter.concurrency_plans:
            with suppress(NotFound):  # the plan may be deleted by another thread
                fields_of = prepared_fields(self._limiter.rule(plan, "")).raw_fields
                limit_path = _LimitPath(fast_paths, fast_paths[plan], fields_of, limit.key.from_peer or _no_path)
        self._limit_paths[limit] = limit_path
        return limit_path


def no_decision(scope: Scope) -> None:
    """A null object for a missing decider: several limits are one decision of the limiter."""


def _no_path(word: str) -> None:
    """A null object for a missing fast path, or a missing key by peer."""


class _LimitPath(NamedTuple):
    """The fast path of one limit, valid until the plans change."""

    fast_paths: Mapping[str, FastPath]
    fast_path: FastPath = _no_path
    fields_of: Callable[[Decision], RawFields] = lambda decision: ()
    from_peer: Callable[[str], str | None] = _no_path


class AsgiRequest:
    """An ASGI scope for key resolvers."""

    __slots__ = ("_app", "_principal", "_root_path", "_scope")

    def __init__(self, scope: Scope, principal: Principal, app: Any, root_path: str | None = None) -> None:
        self._scope = scope
        self._principal = principal
        self._app = app
        self._root_path = root_path
        """The prefix under which `app` is served; `None` for the one in the scope."""

    @property
    def native(self) -> Any:
        return self._scope

    @property
    def method(self) -> str:
        return str(self._scope.get("method", "GET"))

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    @property
    def route(self) -> str | None:
        app = app_with_routes(self._scope.get("app") if self._app is None else self._app)
        if self._root_path is None:
            path = route_path(self._scope, _own_root_path(app))
        else:  # in an application mounted in this one, the scope has another
            path = _without(self._root_path, self.path)
        match = matching_route(getattr(app, "routes", ()), self._scope, path)
        return None if match is None else match.pattern

    @property
    def peer(self) -> str | None:
        return peer_of(self._scope)

    def header(self, name: str) -> str | None:
        raw_name, joined = name.encode("latin-1"), None
        for field, value in self._scope["headers"]:
            if field == raw_name:
                joined = value if joined is None else joined + b"," + value
        return None if joined is None else joined.decode("latin-1")

    def principal(self) -> KeyValue | Awaitable[KeyValue]:
        return self._principal(self.native)


def peer_of(scope: Scope) -> str | None:
    """The peer's address; `UNNAMED_PROXY` if the server has replaced it, so that it is one of `X-Forwarded-For`."""
    client = scope.get("client")
    if not client:
        return None
    host: str = client[0]
    for name, value in scope.get("headers", ()):
        if name == b"x-forwarded-for" and host.encode() in value and (not client[1] or b":%d" % client[1] in value):
            return UNNAMED_PROXY
    return host


def user_of(scope: Scope) -> KeyValue:
    """The user that Starlette's authentication middleware, or one like it, put into the scope."""
    user = scope.get("user")
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    try:
        return str(user.identity)
    except NotImplementedError:
        return str(user.display_name)


def with_fields(send: Send, fields: RawFields, *, missing_only: bool = False) -> Send:
    """`send`, with the fields added when the response starts; with `missing_only`, those that it does not have."""

    def send_with_fields(message: Message) -> Awaitable[None]:
        if fields and message["type"] in STARTS:
            own = message.get("headers", ())
            message["headers"] = [*own, *missing(fields, own)] if missing_only else merge_raw(own, fields)
        return send(message)

    return send_with_fields


def missing(fields: RawFields, own: Iterable[tuple[bytes, bytes]]) -> RawFields:
    """The fields whose names are not among `own`."""
    names = {bytes(name).lower() for name, _ in own}
    return [field for field in fields if field[0] not in names]


class ResponseObserver:
    """Observes a response, and settles the charges that depend on it: before the last part of the body is sent, so that
    a client that has read a response is charged for it; or when the application ends."""

    __slots__ = ("_headers", "_request_limiter", "_status", "charges", "native")

    def __init__(self, request_limiter: RequestLimiter, native: Any, charges: list[ResponseCharge]) -> None:
        self._request_limiter = request_limiter
        self._status = 0
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self.native = native
        self.charges = charges

    def is_end(self, message: Message) -> bool:
        """Whether the response ends with this message."""
        kind = message["type"].removeprefix("websocket.")
        if kind == "http.response.start":
            self._status, self._headers = message["status"], message.get("headers", ())
        elif kind == "accept":
            self._status = 101
        elif kind == "close" and not self._status:
            self._status = 403
        return kind == "http.response.body" and not message.get("more_body", False)

    async def settle(self, *, completed: bool = True, failed: bool = False) -> None:
        """Settles the charges, once. If the client disconnected before the response, they stay as reserved."""
        charges, self.charges = self.charges, []
        if charges:
            fields = [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in self._headers]
            known = self._status or failed
            response = Response(self.native, self._status or 500, fields, completed=completed) if known else None
            self.native = None
            await self._request_limiter.settle_async(charges, response)


async def run_observed(app: App, scope: Scope, receive: Receive, send: Send, observer: ResponseObserver) -> None:
    """Runs the application, and settles its response's charges however it ends."""

    async def send_observed(message: Message) -> None:
        if observer.is_end(message):
            await observer.settle()
        await send(message)

    try:
        await app(scope, receive, send_observed)
    except Exception:
        await observer.settle(completed=False, failed=True)
        raise
    except BaseException:
        await observer.settle(completed=False)
        raise
    await observer.settle(completed=scope["type"] == "websocket")


def encoded(fields: Iterable[tuple[str, str]]) -> RawFields:
    """Fields in ASGI's format."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]


async def refuse(refusal: Refusal, scope: Scope, send: Send) -> None:
    """Sends a refusal. A WebSocket that can't be answered by HTTP is closed before it opens."""
    prefix = ""
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": TRY_LATER, "reason": "rate limit exceeded"})
            return
        prefix = "websocket."
    fields = [*refusal.fields, ("Content-Length", str(len(refusal.body)))]
    await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": encoded(fields)})
    await send({"type": f"{prefix}http.response.body", "body": refusal.body})
