"""Limits for aiohttp: a decorator for handlers, rules for everything else, and a middleware for its client.

    install(app, limiter)

    @routes.get("/api/resource")
    @rate_limit("gold", key=header("X-API-Key"))
    async def resource(request): ...

    session = aiohttp.ClientSession(middlewares=[LimitedMiddleware(partner)])

A denied request gets 429 with `Retry-After` and a problem as its body; every limited response has the RateLimit
fields. For the client see `LimitedMiddleware`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache, partial, wraps
from itertools import pairwise
from typing import Any, TypeVar, Unpack
from urllib.parse import unquote

from paceline.downstream.call import Call as DownstreamCall
from paceline.downstream.client_calls import DEFAULT_KEY, DEFAULT_TIMEOUT, Body, ClientCalls, CostsOf, KeyOf, Settle
from paceline.downstream.downstream import Downstream
from paceline.downstream.verdicts import Answer
from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.denial_bodies import own_body
from paceline.integrations.installed_limits import InstalledLimits
from paceline.integrations.limit import (
    NO_ROUTE,
    Limit,
    LimitOptions,
    OnDenied,
    PathRule,
    Plans,
    Response,
    resolved,
    scope_of,
)
from paceline.integrations.request_limiter import Refusal, RequestLimiter, ResponseCharge
from paceline.integrations.response_fields import ResponseFields
from paceline.integrations.route_patterns import ANYTHING, SEGMENT, Route
from paceline.integrations.stack import attach_limits, attached_limits, defaults_beside, exempt, is_exempt, limits_of
from paceline.limits._blocking import Limiter
from paceline.limits.keys import (
    Key,
    KeyFunction,
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

with needed("paceline.integrations.aiohttp", "aiohttp"):
    from aiohttp import ClientError, ClientHandlerType, ClientRequest, ClientResponse, StreamReader, web

__all__ = [
    "DECISION",
    "Limit",
    "LimitedMiddleware",
    "PathRule",
    "client_address",
    "composite",
    "everyone",
    "exempt",
    "header",
    "install",
    "method",
    "path",
    "principal",
    "rate_limit",
    "route",
]

Handler = TypeVar("Handler", bound=Callable[..., Any])
PrincipalFinder = Callable[[web.Request], KeyValue | Awaitable[KeyValue]]

BUFFER = 2**16
"""Bytes of a body that wait for its reader."""

Respond = Callable[[], Awaitable[Any]]

_VARIABLE = re.compile(r"\{\w+\}")
_SEGMENTS = re.compile(re.escape("(?P<") + r"(\w+)" + re.escape(f">{web.DynamicResource.GOOD})"))
"""Variables of a route that have no regular expression of their own."""


def _request_key(name: str, kind: type) -> Any:
    """A key of a request's storage; a text before aiohttp 3.14."""
    return web.RequestKey(name, kind) if hasattr(web, "RequestKey") else name


DECISION: Any = _request_key("rate_limit", Decision)
"""The request's key for the decision of a limit that does not block: `request[DECISION]`."""


def install(
    app: web.Application,
    limiter: Limiter | AsyncLimiter,
    rules: Iterable[PathRule] = (),
    *,
    defaults: Iterable[Limit] = (),
    principal: PrincipalFinder | None = None,
    partition_keys: bool = False,
    legacy_headers: bool = False,
    on_denied: OnDenied | None = None,
) -> None:
    """Makes `rate_limit` work in `app` and its sub-applications, by `limiter`, and limits all requests by `rules`.

    `defaults` apply to every request, also one that matches no route, except handlers that have their own limit or are
    `exempt`. `principal` finds the authenticated user of a request; by default it is `request["principal"]`.
    `partition_keys` adds `pk` to the RateLimit fields, `legacy_headers` adds `X-RateLimit-*`. `on_denied` makes the
    response of denials whose limit has no own `on_denied`. Without one, a denial is raised as an error that is both
    `RateLimitExceeded` and `web.HTTPTooManyRequests`, which the application's own middleware can handle.

    Raises:
        ConfigurationError: `install` was called before, a rule names an unknown plan, or rules that always apply
            together have keys that never share a slot of the limiter's Redis Cluster.
    """
    if _EXTENSION in app:
        raise ConfigurationError("app", "it has a limiter: install was called before, and only one can decide")
    request_limiter = RequestLimiter(
        limiter, partition_keys=partition_keys, legacy_headers=legacy_headers, on_denied=on_denied
    )
    extension = _Extension(request_limiter, rules, defaults, principal or _principal)
    app[_EXTENSION] = extension
    app.middlewares.append(extension.middleware())
    app.on_response_prepare.append(_add_fields)


def rate_limit(
    plans: Plans, *, key: Key | KeyFunction, **options: Unpack[LimitOptions]
) -> Callable[[Handler], Handler]:
    """Limits a handler: an async function of the request, or a method of a `web.View`.

    Several plans, and several such decorators directly on one another, are one atomic decision; if another decorator is
    between them, each decides for itself, in order. Functions for the plans, the key, the cost and exemptions are given
    the `web.Request`, and may be async. For the options see `LimitOptions`. With `block=False` the decision is
    `request[DECISION]`.

    Raises:
        ConfigurationError: the plans, the key or an option can't be used, or the handler is no async function.
    """
    limit = Limit(plans, key=key, **options)

    def decorate(handler: Handler) -> Handler:
        below, bare = attached_limits(handler)
        limits = (limit.of_route(scope_of(bare)), *below)
        if not inspect.iscoroutinefunction(bare):
            raise ConfigurationError("handler", f"{handler!r} is no async function; limit the methods of a web.View")

        @wraps(handler)  # not `bare`: marks by decorators in between must be kept
        async def admitted(*args: Any) -> Any:
            request = _request_among(args)
            extension = request.config_dict.get(_EXTENSION)
            if extension is None:
                raise ConfigurationError("app", "limits need install(app, limiter) from paceline.integrations.aiohttp")
            return await extension.limited(limits, request, partial(bare, *args))

        attach_limits(admitted, limits, bare)
        return admitted  # type: ignore[return-value]  # the same to callers through aiohttp

    return decorate


class _Exchange(ResponseFields):
    """The state of a request until its response is known."""

    __slots__ = ("prepared",)

    def __init__(self) -> None:
        super().__init__()
        self.prepared: web.StreamResponse | None = None
        """The response whose head was sent."""


class _Denied(RateLimitExceeded, web.HTTPTooManyRequests):
    """A denial as an exception, and aiohttp's response to it unless it is handled."""

    def __init__(self, refusal: Refusal, decision: Decision) -> None:
        fields = dict(refusal.fields)
        web.HTTPTooManyRequests.__init__(self, headers=fields, text=refusal.body.decode())
        self.headers["Content-Type"] = fields["Content-Type"]  # JSON has no charset
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        return RateLimitExceeded, (self.decision,)


class _Extension(InstalledLimits[RequestLimiter]):
    """The limits that `install` adds to the application."""

    def middleware(self) -> Any:
        """Limits requests by the rules that match them, and by the defaults."""

        @web.middleware
        async def limit(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self._handle(request, handler)

        return limit

    async def _handle(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.check_routes(lambda: _routes(request))
        limits = []
        if self.rules:
            path = _relative_path(request)
            limits = [rule.limit for rule in self.rules if rule.applies(request.method, path)]
        if self.defaults:
            limits += _defaults_of(request, self.defaults)
        respond = partial(handler, request)
        try:
            response: web.StreamResponse = await (self.limited(limits, request, respond) if limits else respond())
            return response
        except RateLimitExceeded as error:
            if isinstance(error, _Denied):
                raise
            # Raised by the application: limiter.check(...)
            return await self._refusal_response(self.request_limiter.refusal_of(error), request)

    async def limited(self, limits: Sequence[Limit], request: web.Request, respond: Respond) -> Any:
        """The response of a handler, or of a denial."""
        answer = await self.request_limiter.admit_async(limits, _AiohttpRequest(request, self.principal))
        if isinstance(answer, Refusal):
            return await self._refusal_response(answer, request)
        _exchange(request).admit(answer.fields)
        if answer.decision is not None:
            request[DECISION] = answer.decision
        if not answer.charges:
            return await respond()
        return await self._settle_after(answer.charges, request, respond)

    async def _settle_after(self, charges: Sequence[ResponseCharge], request: web.Request, respond: Respond) -> Any:
        settle, exchange = self.request_limiter.settle_async, _exchange(request)
        try:
            response: web.StreamResponse = await respond()
        except web.HTTPException as response_raised:
            await settle(charges, _response_of(request, response_raised))
            raise
        except Exception:
            began = exchange.prepared
            failed = Response(request, 500) if began is None else _response_of(request, began)
            failed.completed = False
            await settle(charges, failed)
            raise
        except BaseException:  # the client disconnected
            began = exchange.prepared
            await settle(charges, None if began is None else _response_of(request, began, completed=False))
            raise
        await settle(charges, _response_of(request, response))
        return response

    async def _refusal_response(self, refusal: Refusal, request: web.Request) -> web.StreamResponse:
        if refusal.decision is None:
            return _response(refusal)
        _exchange(request).deny(refusal.limit_fields)
        own = None
        if refusal.on_denied is not None:
            own = await resolved(refusal.on_denied(request, refusal.decision))
        if own is None:
            raise _Denied(refusal, refusal.decision)
        if isinstance(own, web.StreamResponse):
            return own
        body, content_type = own_body(own)
        return web.Response(body=body, status=refusal.status, headers={"Content-Type": content_type})


_EXTENSION = web.AppKey("paceline", _Extension)
_EXCHANGE: Any = _request_key("paceline", _Exchange)


class _AiohttpRequest:
    """aiohttp's request for key resolvers."""

    __slots__ = ("_principal", "native")

    def __init__(self, native: web.Request, principal: PrincipalFinder) -> None:
        self.native = native
        self._principal = principal

    @property
    def method(self) -> str:
        return self.native.method

    @property
    def path(self) -> str:
        return self.native.path

    @property
    def route(self) -> str | None:
        resource = self.native.match_info.route.resource
        return None if resource is None else resource.canonical

    @property
    def peer(self) -> str | None:
        return self.native.remote or None

    def header(self, name: str) -> str | None:
        values = self.native.headers.getall(name, [])
        return ",".join(values) if values else None

    def principal(self) -> KeyValue | Awaitable[KeyValue]:
        return self._principal(self.native)


class LimitedMiddleware:
    """A `Downstream` under `aiohttp.ClientSession(middlewares=[...])`: requests wait for their turn.

    `settle`, `costs`, `key` and `timeout` are those of `Downstream.transport`. A call ends when its body has been read,
    was closed or was cut off. A request that could not leave in time raises an error that is both `RateLimitExceeded`
    and `aiohttp.ClientError`, and nothing is sent.

    Raises:
        ConfigurationError: an option can't be used, or it is no `Downstream`.
    """

    def __init__(
        self,
        downstream: Downstream,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        if not isinstance(downstream, Downstream):
            raise ConfigurationError("downstream", f"aiohttp needs an event loop's Downstream, not {downstream!r}")
        self._calls = ClientCalls(downstream, settle, costs, key, timeout)
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        call = self._calls.call_of(request)
        if call is None:
            return await handler(request)
        try:
            await call.enter()
        except RateLimitExceeded as error:
            raise _RequestRefused(error.decision) from None
        try:
            await call.confirm()
            response = await handler(request)
            call.left()
            await call.responded(response.status, response.headers.get)
        except BaseException as error:
            await call.leave(error)
            raise
        if self._calls.reads_bodies:
            self._watch(self._copy_and_leave(call, response))
        elif response.connection is not None:
            # aiohttp releases the connection when the body has arrived, has failed, or is closed.
            response.connection.add_callback(lambda: self._watch(call.leave()))
        else:
            await call.leave()
        return response

    def _copy_and_leave(self, call: DownstreamCall, response: ClientResponse) -> Coroutine[Any, Any, None]:
        """Gives the response another body, into which the arriving one is copied: aiohttp can't watch a body."""
        arriving, loop = response.content, asyncio.get_running_loop()
        handed_on = StreamReader(arriving._protocol, BUFFER, loop=loop)
        connection, response.content = response.connection, handed_on
        closed = asyncio.Event()
        if connection is not None:
            connection.add_callback(closed.set)

        async def copy() -> None:
            body, is_whole = Body(True), False
            released = loop.create_task(closed.wait())
            try:
                while not arriving.at_eof():
                    part = loop.create_task(arriving.readany())
                    await asyncio.wait({part, released}, return_when=asyncio.FIRST_COMPLETED)
                    if not part.done() and not arriving.is_eof():
                        part.cancel()
                        break
                    data = await part
                    body.add(data)
                    handed_on.feed_data(data)
                else:
                    is_whole = True
            except Exception as error:
                handed_on.set_exception(error)
            finally:
                released.cancel()
                handed_on.feed_eof()
                answer = Answer.of(response.status, body.content(), response.headers.get, whole=is_whole)
                self._calls.settle(call, answer)
                await call.leave()

        return copy()

    def _watch(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _RequestRefused(RateLimitExceeded, ClientError):
    """A request that was not sent."""


def _exchange(request: web.Request) -> _Exchange:
    exchange: _Exchange | None = request.get(_EXCHANGE)
    if exchange is None:
        exchange = request[_EXCHANGE] = _Exchange()
    return exchange


async def _add_fields(request: web.Request, response: web.StreamResponse) -> None:
    exchange = _exchange(request)
    exchange.prepared = response
    exchange.add_to(response.headers)


def _response_of(request: web.Request, response: web.StreamResponse, *, completed: bool = True) -> Response:
    return Response(request, response.status, response.headers.items(), native=response, completed=completed)


def _request_among(args: tuple[Any, ...]) -> web.Request:
    for value in args:
        if isinstance(value, web.Request):
            return value
        if isinstance(value, web.View):
            return value.request
    raise ConfigurationError("handler", "aiohttp must call it, with the request; pass arguments on in decorators")


def _defaults_of(request: web.Request, defaults: Sequence[Limit]) -> Sequence[Limit]:
    """The defaults that apply to a request besides the limits of its handler; none if that is exempt."""
    handler: Any = request.match_info.handler
    shown = (handler, getattr(handler, request.method.lower(), None) if inspect.isclass(handler) else None)
    if any(map(is_exempt, shown)):
        return ()
    own = [limit for one in shown for limit in limits_of(one)]
    return defaults_beside(own, defaults, NO_ROUTE if request.match_info.http_exception else scope_of(handler))


def _relative_path(request: web.Request) -> str:
    """The path in the application whose middleware runs: without the prefix under which it is mounted."""
    app, apps = request.app, request.match_info.apps
    return request.path if app is apps[0] else request.path.removeprefix(_prefix(app, apps)) or "/"


@lru_cache(maxsize=1024)  # as aiohttp keeps the middlewares of such a sequence
def _prefix(app: web.Application, apps: tuple[web.Application, ...]) -> str:
    """The prefix of `app`, decoded as `request.path` is; `apps` are those that a request passes, outermost first."""
    prefix = ""
    for parent, child in pairwise(apps[: apps.index(app) + 1]):
        for resource in parent.router.resources():
            mount = resource.get_info()
            if mount.get("app") is child:
                prefix = mount.get("prefix", "")  # contains the prefixes of the applications around; a domain has none
    return unquote(prefix)


def _routes(request: web.Request) -> list[Route]:
    prefix = _prefix(request.app, request.match_info.apps)
    return [
        Route(_served(one.resource).removeprefix(prefix), None if one.method == "*" else [one.method])
        for one in request.app.router.routes()
        if one.resource is not None
    ]


def _served(resource: web.AbstractResource) -> str:
    """The path of a resource as a `Route` has it, with the prefix of its application."""
    info = resource.get_info()
    if "pattern" not in info:
        return unquote(resource.canonical) + (ANYTHING if "directory" in info else "")
    segments = {f"{{{name}}}" for name in _SEGMENTS.findall(info["pattern"].pattern)}
    return unquote(_VARIABLE.sub(lambda match: SEGMENT if match[0] in segments else ANYTHING, resource.canonical))


def _principal(request: web.Request) -> KeyValue:
    value: KeyValue = request.get("principal")
    return value


def _response(refusal: Refusal) -> web.Response:
    return web.Response(body=refusal.body, status=refusal.status, headers=dict(refusal.fields))
