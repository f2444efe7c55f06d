"""Request bodies: their type, their size, their JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.entrypoints.http.problem import invalid, too_large, unsupported

NDJSON = "application/x-ndjson"
STREAMED = (NDJSON.encode(), b"application/ndjson", b"application/jsonl", b"text/csv")
"""Types that are read piece by piece, and so need no limit."""


class BodyLimit:
    """Refuses bodies above a size with 413, except streamed ones."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "DELETE"):
            await self._app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if media_type(scope) in STREAMED:
            await self._app(scope, receive, send)
        elif length is None:
            await self._app(scope, self._counted(receive), send)
        elif int(length) > self._limit:
            await too_large(self._limit).response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
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
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value).partition(b";")[0].strip().lower()
    return b""


async def read_object(scope: Scope, receive: Receive, most: int | None = None) -> dict[str, Any]:
    """The JSON object in the body, of so many bytes at most. A number without a fraction is whole however it is
    written: 5.0 is 5."""
    if media_type(scope) != b"application/json":
        raise unsupported("application/json")
    found: dict[str, Any] = _whole(parsed_object(await read(receive, most)))
    return found


async def read(receive: Receive, most: int | None = None) -> bytes:
    """The whole body; 413 as soon as it is larger than `most`."""
    message = await receive()
    if most is None and not message.get("more_body", False) and message["type"] == "http.request":
        return bytes(message["body"])
    parts = []
    taken = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        taken += len(parts[-1])
        if most is not None and taken > most:
            raise too_large(most)
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
    """The JSON in `raw`."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # Numbers of more than 64 bits are valid JSON, and their field should be named; orjson refuses them whole.
        try:
            return json.loads(raw, parse_constant=_refused)
        except (ValueError, RecursionError):
            raise invalid(name, f"is not valid JSON: {error}") from None


def _whole(value: Any) -> Any:
    if value.__class__ is float:
        return int(value) if value.is_integer() else value
    if value.__class__ is dict:
        return {name: each if each.__class__ is str else _whole(each) for name, each in value.items()}
    if value.__class__ is list:
        return [each if each.__class__ is str else _whole(each) for each in value]
    return value


def only(value: dict[str, Any], known: Collection[str], prefix: str = "") -> None:
    """Refuses members nobody asked for: a misspelt option must not be silently without effect."""
    for member in value:
        if member not in known:
            raise invalid(f"{prefix}{member}", f"is unknown; known are {', '.join(known)}")


def required(value: dict[str, Any], member: str, prefix: str = "") -> Any:
    """The member, which must be there."""
    found = value.get(member)
    if found is None:
        raise invalid(f"{prefix}{member}", "is required")
    return found


def _refused(constant: str) -> None:
    raise ValueError(constant)
