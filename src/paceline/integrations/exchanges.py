"""The state of a request of an ASGI framework between its limits and its response: fields, and charges to settle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from paceline.integrations.asgi import (
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
from paceline.integrations.limit import Limit
from paceline.integrations.request_limiter import Admission, Fields, ResponseCharge
from paceline.limits.headers import RawFields, merge_raw
from paceline.limits.keys import KeyValue

PrincipalFinder = Callable[[Any], KeyValue | Awaitable[KeyValue]]

EXCHANGE = "paceline.exchange"
"""The key of a scope's `Exchange`."""


class Exchange:
    """The state of a request, in its scope. Nothing here references the scope or `send`, except `connection` while
    there are charges: every request would leave a reference cycle to the garbage collector."""

    __slots__ = ("charges", "connection", "denied", "fields", "root_path")

    request_limiter: AsgiRequestLimiter
    principal: PrincipalFinder
    app: Any = None
    root_path: str
    fields: tuple[tuple[bytes, bytes], ...]
    """The fields of the response."""
    denied: bool
    """Whether the fields are those of a denial, which the application's own handler may also have set."""
    charges: Sequence[ResponseCharge]
    connection: Any

    @classmethod
    def of(cls, request_limiter: AsgiRequestLimiter, principal: PrincipalFinder) -> type[Exchange]:
        """The subclass for one application's requests."""
        shared = {"request_limiter": request_limiter, "principal": staticmethod(principal), "__slots__": ()}
        return type(cls.__name__, (cls,), shared)

    @classmethod
    def begin(cls, scope: Scope, send: Send) -> Send:
        """Puts the state of a request into its scope. Returns `send`, which adds the fields as the response starts."""
        exchange = scope[EXCHANGE] = cls()
        # Here and not in `__init__`, whose call would take longer than all of it.
        exchange.root_path = scope.get("root_path", "")
        exchange.fields = exchange.charges = ()
        exchange.denied, exchange.connection = False, None

        def send_with_fields(message: Message) -> Awaitable[None]:
            fields = exchange.fields
            if fields and message["type"] in STARTS:
                own = message.get("headers", ())
                message["headers"] = [*own, *missing(fields, own)] if exchange.denied else merge_raw(own, fields)
                exchange.fields = ()  # the parts of the body need not look at their type
            return send(message)

        return send_with_fields

    def admit(self, answer: RawFields | Admission, connection: Any) -> None:
        """Stores the result of an admission."""
        if not isinstance(answer, Admission):
            self.add(answer)
            return
        self.add(encoded(answer.fields))
        if answer.charges:
            self.charges = (*self.charges, *answer.charges)
            self.connection = connection

    def add(self, fields: RawFields) -> None:
        """Adds the fields of one more limit to the response."""
        self.fields = tuple(merge_raw(self.fields, fields)) if self.fields else tuple(fields)

    def deny(self, fields: Fields) -> None:
        """Stores the fields of a denial, which replace those of limits that admitted the request before."""
        self.fields, self.denied = (*encoded(fields),), True


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

    limiter = kind.request_limiter.limiter

    async def carrying(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await app(scope, receive, send)
            return
        sending = kind.begin(scope, send)
        if Limit.any_by_response or limiter.holds_places:
            await run_observed(app, scope, receive, sending, ExchangeObserver(scope[EXCHANGE]))
        else:
            await app(scope, receive, sending)

    return carrying
