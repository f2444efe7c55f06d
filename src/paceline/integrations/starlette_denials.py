"""The response to a denial in Starlette: by `on_denied`, by the application's own exception handler, or as a
problem."""

from __future__ import annotations

import inspect
import json
from functools import partial, wraps
from typing import Any

from paceline.errors import RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.asgi import TRY_LATER
from paceline.integrations.denial_bodies import own_body
from paceline.integrations.exchanges import EXCHANGE, Exchange
from paceline.integrations.functions import function_of
from paceline.integrations.limit import resolved
from paceline.integrations.request_limiter import Refusal, denial
from paceline.limits.headers import fields
from paceline.limits.model import Decision

with needed("paceline.integrations.starlette", "starlette"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware.exceptions import ExceptionMiddleware
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.websockets import WebSocket

ANSWERS = "__paceline_answers__"
"""The attribute of an application's own handler after it was given the fields of denials."""
HANDLERS = "starlette.exception_handlers"
"""The scope's key for the app's handlers, by exception and by status."""


class _Refused(HTTPException):
    """A refusal that an endpoint or a dependency raises; the app's own handlers by status can make a response of it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, json.loads(refusal.body)["detail"], dict(refusal.limit_fields))
        self.refusal = refusal


class _Denied(RateLimitExceeded, _Refused):
    """A denial as an exception; the app's own handlers for `RateLimitExceeded` can make a response of it too."""

    def __init__(self, refusal: Refusal, decision: Decision) -> None:
        _Refused.__init__(self, refusal)
        self.decision = decision

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.refusal, self.decision)


class _OwnAnswer(Exception):
    """Carries the response of `on_denied`."""

    def __init__(self, response: Response) -> None:
        super().__init__("the response of a denial")
        self.response = response


async def refused(refusal: Refusal, connection: HTTPConnection) -> Exception:
    """The exception for a refusal. The app that handles it may be a mounted one, without our handlers yet."""
    handlers, _ = connection.scope.get(HANDLERS, ({}, {}))
    add_handlers(handlers)
    exchange: Exchange = connection.scope[EXCHANGE]
    if refusal.decision is None:
        return _Refused(refusal)
    exchange.deny(refusal.limit_fields)
    if refusal.on_denied is not None and connection.scope["type"] == "http":
        own = await resolved(refusal.on_denied(connection, refusal.decision))
        if own is not None:
            return _OwnAnswer(_own_response(own, refusal.status))
    return _Denied(refusal, refusal.decision)


def handler_of(connection: HTTPConnection, error: Exception) -> Any:
    """The handler that Starlette would call for an error."""
    handlers, by_status = connection.scope.get(HANDLERS, ({}, {}))
    if isinstance(error, HTTPException) and error.status_code in by_status:
        return by_status[error.status_code]
    return next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)


def _own_response(value: Any, status: int) -> Response:
    if isinstance(value, Response):
        return value
    body, content_type = own_body(value)
    return Response(body, status, media_type=content_type)


async def answer(connection: HTTPConnection, error: Exception) -> Response | None:
    if isinstance(error, _OwnAnswer):
        return error.response
    assert isinstance(error, _Refused | RateLimitExceeded)
    if isinstance(connection, WebSocket) and "websocket.http.response" not in connection.scope.get("extensions", {}):
        await connection.close(TRY_LATER, "rate limit exceeded")
        return None
    if isinstance(error, _Refused):
        return _response(error.refusal)
    denied = await _denied(error, connection)
    handler = handler_of(connection, denied)  # for 429
    return await (answer if handler is None else partial(call_handler, handler))(connection, denied)


async def _denied(error: RateLimitExceeded, connection: HTTPConnection) -> Exception:
    """The exception for a denial that the application raised, `limiter.check(...)`, as for one by a limit."""
    exchange: Exchange | None = connection.scope.get(EXCHANGE)
    if exchange is None:  # the application is also served without the one that it is mounted in
        return _Denied(denial(error.decision, fields(error.decision, [])), error.decision)
    return await refused(exchange.request_limiter.refusal_of(error), connection)


async def call_handler(handler: Any, connection: HTTPConnection, error: Exception) -> Response | None:
    """Calls an exception handler as Starlette does."""
    if inspect.iscoroutinefunction(function_of(handler)):
        response: Response | None = await handler(connection, error)
        return response
    return await run_in_threadpool(handler, connection, error)


def _answering_by(own: Any) -> Any:
    """An application's own handler for `RateLimitExceeded`, after `on_denied`, and with the fields in its response."""

    @wraps(own)
    async def answer_by_own(connection: HTTPConnection, error: Exception) -> Response | None:
        if isinstance(error, RateLimitExceeded) and not isinstance(error, _Denied):
            denied = await _denied(error, connection)
            if isinstance(denied, _OwnAnswer):
                return denied.response
        return await call_handler(own, connection, error)

    setattr(answer_by_own, ANSWERS, True)
    return answer_by_own


def _response(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, dict(refusal.fields))


def add_handlers(handlers: dict[Any, Any]) -> None:
    """Adds the handlers of denials, unless the application has its own."""
    for kind in (_Refused, _OwnAnswer, RateLimitExceeded):
        handlers.setdefault(kind, answer)


def add_denial_handler(app: Starlette) -> None:
    """Adds the handler of `RateLimitExceeded` to an application. With the first request an application copies its
    handlers into a middleware."""
    own = app.exception_handlers.get(RateLimitExceeded)
    if own is answer or hasattr(own, ANSWERS):
        return
    handler: Any = answer if own is None else _answering_by(own)
    app.exception_handlers[RateLimitExceeded] = handler
    layer: Any = app.middleware_stack
    while layer is not None and not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
    if layer is not None:
        layer.add_exception_handler(RateLimitExceeded, handler)
