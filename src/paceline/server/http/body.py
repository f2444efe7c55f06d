"""Request bodies: their type, their size, their JSON."""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.http.problem import Problem, invalid, too_large, unsupported
from paceline.server.http.services import FIELDS

NDJSON = "application/x-ndjson"
STREAMED = (NDJSON.encode(), b"application/ndjson", b"application/jsonl", b"text/csv", b"application/xml", b"text/xml")
"""Media types that are read as a stream, and so need no limit."""
MAX_LEVELS = 32
"""The maximum depth of nested lists and objects. Our deepest document, a config's calendar, has five levels."""
MAX_OBJECT_VALUES = 100_000
"""The maximum number of values in a body that is one object without a long list. Our largest such object, a config's
calendar with a thousand open hours and blackouts, has a fifth of it."""
MAX_VALUES = 500_000
"""The maximum number of values in any other body. Parsing as many takes a quarter of a second, in which nobody else
is served; a plan with 10,000 overrides has a tenth of them."""
MAX_NAMED_BYTES = 64 * 1024
"""The maximum size of a document whose wrong member is named. Above it, the error has a line and a column."""

_FLOAT = re.compile(rb"\d[.eE]")


class Bodies:
    """Refuses bodies above a size with 413, except streamed ones. Lets routes of GET answer HEAD, without a body."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "DELETE"):
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":

            async def send_without_body(message: Message) -> None:
                await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

            # A copy: the server uses its own scope's method, and would wait for the body.
            await self._app({**scope, "method": "GET"}, receive, send_without_body)
            return
        length = scope[FIELDS].get(b"content-length")
        if (length is not None and int(length) <= self._limit) or media_type(scope) in STREAMED:
            await self._app(scope, receive, send)
        elif length is None:
            await self._app(scope, self._count_bytes(receive), send)
        else:
            await too_large(self._limit).response()(scope, receive, send)

    def _count_bytes(self, receive: Receive) -> Receive:
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limit:
                raise too_large(self._limit)
            return message

        return counted


def media_type(scope: Scope) -> bytes:
    """The body's type without parameters, in lower case; empty if none is given."""
    given: bytes = scope[FIELDS].get(b"content-type", b"")
    return given.partition(b";")[0].strip().lower()


async def read_json(scope: Scope, receive: Receive) -> Any:
    """The JSON in the body, whatever its type. A number without a fraction is whole: 5.0 is 5."""
    if media_type(scope) != b"application/json":
        raise unsupported("application/json")
    return _whole(parsed(await read(receive)))


async def read_object(scope: Scope, receive: Receive, maximum: int | None = None) -> dict[str, Any]:
    """The JSON object in the body, of at most `maximum` bytes and `MAX_OBJECT_VALUES` values. A number without a
    fraction is whole: 5.0 is 5."""
    return object_of(await read_object_text(scope, receive, maximum))


async def read_object_text(scope: Scope, receive: Receive, maximum: int | None = None) -> bytes:
    """The body of such a request, for `object_of` and a reader that sees more."""
    if media_type(scope) != b"application/json":
        raise unsupported("application/json")
    raw = await read(receive, maximum)
    if len(raw) > MAX_OBJECT_VALUES:
        _refuse_many_values(raw, "body", MAX_OBJECT_VALUES)
    return raw


async def read_large_object(scope: Scope, receive: Receive) -> dict[str, Any]:
    """The JSON object in the body of a route that takes a long list. 5.0 is 5."""
    return object_of(await read_text(scope, receive))


async def read_text(scope: Scope, receive: Receive) -> bytes:
    """The body of a JSON request, for `object_of` or a faster parser."""
    if media_type(scope) != b"application/json":
        raise unsupported("application/json")
    raw = await read(receive)
    if len(raw) > MAX_VALUES:
        _refuse_many_values(raw, "body", MAX_VALUES)
    return raw


def object_of(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body; 5.0 is 5."""
    value = parsed(raw)
    if not isinstance(value, dict):
        raise invalid("body", "must be a JSON object")
    # Most documents have no number with a fraction or an exponent, and need no second pass.
    whole: dict[str, Any] = _whole(value) if _FLOAT.search(raw) else value
    return whole


async def read(receive: Receive, maximum: int | None = None) -> bytes:
    """The whole body; 413 as soon as it is larger than `maximum`."""
    message = await receive()
    if maximum is None and not message.get("more_body", False) and message["type"] == "http.request":
        return bytes(message["body"])
    parts = []
    taken = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        taken += len(parts[-1])
        if maximum is not None and taken > maximum:
            raise too_large(maximum)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


def parsed_object(raw: bytes, name: str = "body") -> dict[str, Any]:
    """A JSON object, or the problem with it."""
    value = parsed(raw, name)
    if not isinstance(value, dict):
        raise invalid(name, "must be a JSON object")
    return value


def parsed(raw: bytes, name: str = "body") -> Any:
    """The JSON in `raw`. Its numbers are finite, its texts are Unicode, and nothing is nested deeper than `MAX_LEVELS`,
    so its users need not check."""
    if len(raw) > MAX_VALUES:
        _refuse_many_values(raw, name, MAX_VALUES)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if raw.startswith(codecs.BOM_UTF8):
            return parsed(raw[len(codecs.BOM_UTF8) :], name)
        raise _problem(raw, name, error) from None
    # A document has at least one bracket per level. Most have few, and need no second pass.
    if raw.count(b"[") + raw.count(b"{") > MAX_LEVELS:
        _refuse_depth(value, name)
    return value


def _refuse_many_values(raw: bytes, name: str, maximum: int) -> None:
    """Raises if a document may have more than `maximum` values: they are counted by the commas and brackets, also of
    texts, because counting bytes takes a hundredth of the time of parsing them."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > maximum:
        raise invalid(name, f"has more than {maximum} values, by its commas and brackets; send less at once")


def _problem(raw: bytes, name: str, error: orjson.JSONDecodeError) -> Problem:
    """The error of a document that orjson rejects. A number too large for a float and a lone surrogate are valid JSON
    by the grammar: the member is named. The parser that can read them is slower, so it gets small documents only."""
    if len(raw) <= MAX_NAMED_BYTES:
        try:
            value = json.loads(raw, parse_constant=_refuse_constant, parse_int=float)
            _refuse_depth(value, name)
            _refuse_values(value, "", name)
        except Problem as problem:
            return problem
        except RecursionError:
            return _too_deep(name)
        except ValueError:
            pass
    return invalid(name, f"is not valid JSON: {error}")


def _refuse_depth(value: Any, name: str) -> None:
    """Raises if `value` is nested too deeply; names its member, if it has some."""
    if value.__class__ is dict:
        for member, inner in value.items():
            if _is_deeper(inner, MAX_LEVELS - 1):
                raise _too_deep(member)
    elif _is_deeper(value, MAX_LEVELS):
        raise _too_deep(name)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than this. Level by level, because Python's recursion is limited."""
    level = [value] if value.__class__ in (dict, list) else []
    for _ in range(levels):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ in (dict, list)
        ]
    return bool(level)


def _too_deep(name: str) -> Problem:
    return invalid(name, f"is nested more than {MAX_LEVELS} levels deep")


def _refuse_values(value: Any, path: str, name: str) -> None:
    """Raises for the first number that is not finite, and for the first text that is not Unicode."""
    if value.__class__ is float and not math.isfinite(value):
        raise invalid(path or name, "is too large a number")
    if value.__class__ is str and not _is_unicode(value):
        raise invalid(path or name, "is no Unicode text: it holds half of a surrogate pair")
    if value.__class__ is dict:
        for member, inner in value.items():
            inner_path = f"{path}.{member}" if path else member
            if not _is_unicode(member):
                raise invalid(inner_path, "is no name of a member: it holds half of a surrogate pair")
            _refuse_values(inner, inner_path, name)
    elif value.__class__ is list:
        for index, inner in enumerate(value):
            _refuse_values(inner, f"{path}[{index}]", name)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(value: Any) -> Any:
    if value.__class__ is float:
        return int(value) if value.is_integer() else value
    if value.__class__ is dict:
        return {name: inner if inner.__class__ is str else _whole(inner) for name, inner in value.items()}
    if value.__class__ is list:
        return [inner if inner.__class__ is str else _whole(inner) for inner in value]
    return value


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)
