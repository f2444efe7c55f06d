"""The state of a request of an ASGI framework between its limits and its response: fields, and charges to settle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.integrations.asgi import (
    STARTS,
    App,
    AsgiRequestLimiter,
    Message,
    Receive,
    ResponseObserver,
    Scope,
    Send,
    encoded,
    missing,
    run_observed,
)
from headgate.integrations.limit import Limit
from headgate.integrations.request_limiter import Admission, Fields, ResponseCharge
from headgate.limits.headers import RawFields
from headgate.limits.keys import KeyValue

PrincipalFinder = Callable[[Any], KeyValue | Awaitable[KeyValue]]

EXCHANGE = "headgate.exchange"
"""The key of a scope's `Exchange`."""


class Exchange:
    """The state of a request, in its scope. Nothing here references the scope or `send`, except `connection` while
    there are charges: every request would leave a reference cycle to the garbage collector."""

    # Class attributes: creating one per request then runs no Python code.
    request_limiter: AsgiRequestLimiter
    principal: PrincipalFinder
    app: Any = None
    root_path = ""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """The fields of the response."""
    denied = False
    """Whether the fields are those of a denial, which the application's own handler may also have set."""
    charges: Sequence[ResponseCharge] = ()
    connection: Any = None

    @classmethod
    def of(cls, request_limiter: AsgiRequestLimiter, principal: PrincipalFinder) -> type[Exchange]:
        """The subclass for one application's requests."""
        shared = {"request_limiter": request_limiter, "principal": staticmethod(principal)}
        return type(cls.__name__, (cls,), shared)

    def admit(self, answer: RawFields | Admission, connection: Any) -> None:
        """Stores the result of an admission."""
        if not isinstance(answer, Admission):
            self.fields = (*self.fields, *answer)
            return
        self.fields = (*self.fields, *encoded(answer.fields))
        if answer.charges:
            self.charges = (*self.charges, *answer.charges)
            self.connection = connection

    def deny(self, fields: Fields) -> None:
        """Stores the fields of a denial, which replace those of limits that admitted the request before."""
        self.fields, self.denied = (*encoded(fields),), True

    def with_fields(self, send: Send) -> Send:
        """`send`, which adds the fields when the response starts."""

        def send_with_fields(message: Message) -> Awaitable[None]:
            fields = self.fields
            if fields and message["type"] in STARTS:
                own = message.get("headers", ())
                message["headers"] = [*own, *(missing(fields, own) if self.denied else fields)]
            return send(message)

        return send_with_fields


class ExchangeObserver(ResponseObserver):
    """Settles the charges that an exchange has when the response ends."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.request_limiter, None, [])
        self._exchange = exchange

    async def settle(self, *, completed: bool = True, failed: bool = False) -> None:
        self.charges, self.native = list(self._exchange.charges), self._exchange.connection
        self._exchange.charges, self._exchange.connection = (), None
        await super().settle(completed=completed, failed=failed)


def with_exchanges(app: App, kind: type[Exchange]) -> App:
    """An ASGI application whose requests have an exchange of that kind."""

    async def carrying(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await app(scope, receive, send)
            return
        exchange = scope[EXCHANGE] = kind()
        sending = exchange.with_fields(send)
        if Limit.any_by_response:
            await run_observed(app, scope, receive, sending, ExchangeObserver(exchange))
        else:
            await app(scope, receive, sending)

    return carrying
