"""Objects of a paceline service, used from another program: their methods, called over HTTP.

A feature states what it offers in a `RemoteApi`: methods, what a caller's token must permit, and the classes of values.
The client's class and the service's route are both made from it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from paceline import errors
from paceline.batching import Batcher
from paceline.errors import InvalidInput, PacelineError, StoreUnavailable
from paceline.service_client import ServiceClient

MAX_CALLS = 1000
"""Calls that share a request."""
DEADLINE = 30.0
"""Seconds that a call may take, its repeats included."""
PAUSES = (0.1, 0.4, 1.0)
"""Seconds before a call is repeated that may be executed twice."""
KIND, VALUE = "~", "="
"""The members of a value that JSON has no form for."""

NOT_OFFERED = {
    "owner": "is for applications beside the database; a service's callers have none",
    "connection": "is a transaction of yours, which a service can't join; open the database's own URL",
}
"""Parameters that only programs beside the database have."""

C = TypeVar("C", bound=type)


class Need(StrEnum):
    """What a caller's token must permit."""

    LOOK = "look"
    """It changes nothing."""
    SUBMIT = "submit"
    """It books, or queues."""
    ADMIN = "admin"
    """It changes what others see, as an operator does."""

    @property
    def about(self) -> str:
        return {Need.LOOK: "read", Need.SUBMIT: "book and queue", Need.ADMIN: "administrate"}[self]

    @property
    def path(self) -> str:
        """The service's path for such calls."""
        return "/admin/remote" if self is Need.ADMIN else f"/api/v1/remote/{self.value}"


class Method(NamedTuple):
    """A method that a service offers."""

    need: Need
    is_repeatable: bool = True
    """A second call changes nothing more: it may be called again if an answer was lost."""


class Form(NamedTuple):
    """How values of a class are written as JSON, and made again."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


class RemoteApi:
    """What a service offers of a class. `values` are the classes of arguments and results; those without a form of
    their own are written field by field, and what a newer version adds to them is left out."""

    def __init__(
        self,
        target: str,
        offered: type,
        methods: Mapping[str, Method],
        values: Iterable[type] = (),
        forms: Mapping[type, Form] | None = None,
    ) -> None:
        self.target = target
        self.methods = methods
        self._forms: dict[type, Form] = {
            datetime: Form(datetime.isoformat, datetime.fromisoformat),
            timedelta: Form(lambda span: [span.days, span.seconds, span.microseconds], lambda parts: timedelta(*parts)),
            tuple: Form(list, tuple),
            frozenset: Form(list, frozenset),
            dict: Form(lambda pairs: [[*pair] for pair in pairs.items()], lambda pairs: dict(map(tuple, pairs))),
            **{kind: _form(kind) for kind in values},
            **(forms or {}),
            **{kind: _error_form(kind) for kind in vars(errors).values() if _is_error(kind)},
        }
        self._kinds = {kind.__name__: kind for kind in self._forms}
        self._signatures = {name: inspect.signature(getattr(offered, name)) for name in methods}

    # -- values --------------------------------------------------------------------------------------------------

    def dump(self, value: Any) -> Any:
        """A value as JSON."""
        if value is None or type(value) in (str, int, float, bool):
            return value
        if type(value) is list:
            return [*map(self.dump, value)]
        if isinstance(value, Mapping) and all(type(key) is str and key != KIND for key in value):
            return {key: self.dump(one) for key, one in value.items()}
        kind = next((kind for kind in type(value).__mro__ if kind in self._forms), None)
        if kind is None:
            raise InvalidInput(type(value).__name__, "can't be sent to a service")
        return {KIND: kind.__name__, VALUE: self.dump(self._forms[kind].dump(value))}

    def load(self, value: Any) -> Any:
        """The value that `dump` wrote.

        Raises:
            InvalidInput: nobody wrote it so.
        """
        if isinstance(value, list):
            return [*map(self.load, value)]
        if not isinstance(value, dict):
            return value
        if KIND not in value:
            return {key: self.load(one) for key, one in value.items()}
        kind = self._kinds.get(value[KIND]) if isinstance(value[KIND], str) else None
        if kind is None:
            raise InvalidInput("arguments", f"have a value of the unknown kind {value[KIND]!r:.80}")
        try:
            return self._forms[kind].load(self.load(value.get(VALUE)))
        except PacelineError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
            raise InvalidInput("arguments", f"have a value that is no {kind.__name__}") from None

    # -- calls ---------------------------------------------------------------------------------------------------

    def arguments_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call of a method, by name, as JSON."""
        bound = self._signatures[name].bind(None, *args, **kwargs)
        arguments: dict[str, Any] = {}
        for parameter, value in bound.arguments.items():
            if self._signatures[name].parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= value
            else:
                arguments[parameter] = value
        arguments.pop("self")
        for field, problem in NOT_OFFERED.items():
            if arguments.get(field) is not None:
                raise InvalidInput(field, problem)
        return {parameter: self.dump(_listed(value)) for parameter, value in arguments.items()}

    def loaded(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a caller of the service.

        Raises:
            InvalidInput: they are not the method's, or wrong.
        """
        signature = self._signatures[name]
        loaded = {parameter: self.load(value) for parameter, value in arguments.items()}
        try:
            signature.bind(None, **loaded)
        except TypeError as error:
            raise InvalidInput("arguments", f"are not those of {name}: {error}") from None
        for field, problem in NOT_OFFERED.items():
            if loaded.get(field) is not None:
                raise InvalidInput(field, problem)
        return loaded

    def takes(self, name: str, parameter: str) -> bool:
        """Whether a method has this parameter."""
        return parameter in self._signatures[name].parameters

    def offer(self, remote: C) -> C:
        """A class decorator: gives the class, whose instances have `_calls`, the offered methods that it does not
        define by itself."""
        for name in self.methods:
            if name not in vars(remote):
                setattr(remote, name, self._method(name, getattr(remote, name)))
        return remote

    def _method(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def call(self_: Any, *args: Any, **kwargs: Any) -> Any:
            return await self_._calls.call(name, *args, **kwargs)

        return call


class _Call(NamedTuple):
    method: str
    arguments: Mapping[str, Any]
    again: bool


class RemoteCalls:
    """Calls of the methods of one object of a service. Those made while a request is in flight share the next one."""

    def __init__(self, api: RemoteApi, url: str, token: str | None = None) -> None:
        self._api = api
        self._client = ServiceClient(url, token, option="url")
        self._batchers: dict[Need, Batcher[_Call, Any]] = {
            need: Batcher(self._flush(need), max_batch=MAX_CALLS, linger=True) for need in Need
        }

    async def call(self, name: str, *args: Any, again: bool = True, **kwargs: Any) -> Any:
        """The method's result. Without `again` it is not repeated, whatever the method.

        Raises:
            PacelineError: the method's own.
            ConfigurationError: the token does not permit it.
            StoreUnavailable: the service does not answer; it may have executed the call.
        """
        method = self._api.methods[name]
        call = _Call(name, self._api.arguments_of(name, args, kwargs), again and method.is_repeatable)
        try:
            async with asyncio.timeout(DEADLINE):
                return self._api.load(await self._answer(self._batchers[method.need], call))
        except TimeoutError:
            raise StoreUnavailable(f"the service did not answer within {DEADLINE:g} s") from None

    async def _answer(self, batcher: Batcher[_Call, Any], call: _Call) -> Any:
        for pause in PAUSES if call.again else ():
            try:
                return await batcher.submit(call)
            except StoreUnavailable:
                await asyncio.sleep(pause)
        return await batcher.submit(call)

    def _flush(self, need: Need) -> Callable[[Sequence[_Call]], Awaitable[Sequence[Any]]]:
        async def flush(calls: Sequence[_Call]) -> Sequence[Any]:
            sent = [{"method": call.method, "arguments": call.arguments} for call in calls]
            body = {"target": self._api.target, "calls": sent}
            answer = await self._client.post(need.path, body, again=all(call.again for call in calls))
            return [one["ok"] if "ok" in one else self._api.load(one["error"]) for one in answer["results"]]

        return flush

    async def close(self) -> None:
        """Lets calls in flight finish, then closes the connections."""
        for batcher in self._batchers.values():
            await batcher.close()
        await self._client.close()


def _listed(value: Any) -> Any:
    """An iterable that is read once, such as a generator, as a list."""
    return [*value] if isinstance(value, Iterable) and not isinstance(value, str | Mapping | Sequence) else value


def _form(kind: type) -> Form:
    if issubclass(kind, Enum):
        return Form(lambda value: value.value, kind)
    is_tuple = issubclass(kind, tuple)
    names = [*kind._fields] if is_tuple else [field.name for field in fields(kind) if field.init]  # type: ignore[attr-defined,arg-type]
    return Form(
        lambda value: {name: getattr(value, name) for name in names},
        lambda given: kind(**{name: given[name] for name in names if name in given}),
    )


def _error_form(kind: type) -> Form:
    return Form(lambda error: [*error.__reduce__()[1]], lambda given: kind(*given))


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, PacelineError)
