"""A small HTTP/1.1 client for event loops: JSON to a paceline service, over connections that are kept.

It has no dependency, as `pip install paceline` has none.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from paceline.errors import ConfigurationError, Conflict, InvalidInput, NotFound, StoreUnavailable

SCHEMES = ("https", "http")
MAX_IDLE = 8
"""The most idle connections that are kept."""
MAX_IDLE_SECONDS = 2.0
"""After this, an idle connection is not used again: the server may be closing it."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024


def is_service(url: object) -> bool:
    """Whether a store's URL is that of a paceline service."""
    return isinstance(url, str) and url.partition("://")[0] in SCHEMES


def check_token(token: str | None, url: str) -> None:
    """Raises `ConfigurationError` for a token with a URL that is no service's."""
    if token is not None and not is_service(url):
        raise ConfigurationError("token", "is for a paceline service, https://…")


class _Response(NamedTuple):
    status: int
    body: bytes
    keeps_open: bool


class ServiceClient:
    """Calls a service with JSON. It connects at the first call.

    Raises:
        ConfigurationError: the URL or the token can't be used.
    """

    def __init__(self, url: str, token: str | None = None, *, option: str = "store") -> None:
        parts = _checked(url, option)
        if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
            raise ConfigurationError("token", "is the secret that `paceline tokens create` printed")
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._token = token
        self._head = f"Host: {parts.netloc}\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        if token is not None:
            self._head += f"Authorization: Bearer {token}\r\n"
        self._idle: list[tuple[StreamReader, StreamWriter, float]] = []

    async def post(self, path: str, body: object, *, again: bool = False) -> Any:
        """The JSON that the service answers. With `again`, the call is repeated once over a new connection if a kept
        one broke: only for what may be executed twice.

        Raises:
            StoreUnavailable: no answer, or one that says so.
            Conflict: another writer was first.
            InvalidInput: the service names a member of the body.
            NotFound: there is no such thing.
            ConfigurationError: the token is not valid for this, or there is no such service.
        """
        sent = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(sent)}\r\n\r\n".encode()
        response = await self._exchange(head + sent, again)
        return _result(response)

    async def close(self) -> None:
        """Closes the idle connections. Closing twice is fine."""
        while self._idle:
            writer = self._idle.pop()[1]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, message: bytes, again: bool) -> _Response:
        while True:
            connection, is_kept = await self._connection()
            reader, writer = connection
            try:
                writer.write(message)
                response = await _read(reader)
            except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
                writer.close()
                if is_kept and again:
                    continue
                raise StoreUnavailable(f"{self._host} gave no answer: {error}") from error
            except BaseException:  # cancelled: its answer must not be read by the next call
                writer.close()
                raise
            if response.keeps_open and len(self._idle) < MAX_IDLE:
                self._idle.append((reader, writer, asyncio.get_running_loop().time()))
            else:
                writer.close()
            return response

    async def _connection(self) -> tuple[tuple[StreamReader, StreamWriter], bool]:
        """A connection, and whether it was used before."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            reader, writer, since = self._idle.pop()
            if now - since <= MAX_IDLE_SECONDS and not reader.at_eof() and not writer.is_closing():
                return (reader, writer), True
            writer.close()
        try:
            return await asyncio.open_connection(self._host, self._port, ssl=self._tls), False
        except OSError as error:
            raise StoreUnavailable(f"{self._host} can't be reached: {error}") from error


def _checked(url: str, option: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(option, f"is no URL: {error}") from None
    if not parts.hostname or parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError(
            option, "write https://host, with a port or a path if it has one; token= has the token"
        )
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ConfigurationError(option, "use https://: over http:// anybody on the way reads the token")
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _read(reader: StreamReader) -> _Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    if "chunked" in fields.get("transfer-encoding", "").lower():
        body = await _read_chunks(reader)
    else:
        length = int(fields["content-length"]) if "content-length" in fields else -1
        if length > MAX_RESPONSE_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        body = await reader.readexactly(length) if length >= 0 else await reader.read()
    keeps_open = version == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
    return _Response(int(rest[:3]), body, keeps_open and (bool(body) or "content-length" in fields))


async def _read_chunks(reader: StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        if len(body) + size > MAX_RESPONSE_BYTES:
            raise ValueError("an answer that is too long")
        body += (await reader.readexactly(size + 2))[:-2]
    while (await reader.readline()).strip():
        pass  # trailers
    return body


def _result(response: _Response) -> Any:
    try:
        value = json.loads(response.body)
    except ValueError:
        value = None
    if 200 <= response.status < 300 and value is not None:
        return value
    problem = value if isinstance(value, dict) else {}
    detail = str(problem.get("detail") or f"it answered with status {response.status}")
    if response.status in (401, 403):
        raise ConfigurationError("token", detail)
    if response.status == 400:
        field = str(problem.get("field", ""))
        raise InvalidInput(field, detail.removeprefix(f"{field}: "))
    if response.status == 404 and "name" in problem:
        raise NotFound(str(problem.get("kind", "name")), str(problem["name"]))
    if response.status in (404, 405):
        raise ConfigurationError("store", f"is no paceline service: {detail}")
    if response.status == 409:
        raise Conflict(detail)
    if response.status == 413:
        raise InvalidInput("body", detail)
    raise StoreUnavailable(f"the service: {detail}")
