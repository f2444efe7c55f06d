"""Reads replies of the Redis protocol: `hiredis`, a parser in C, if it is installed (`paceline[redis]`), or else
`ReplyReader`, the same in Python."""

from __future__ import annotations

from typing import Any, Protocol

try:
    import hiredis
except ModuleNotFoundError:
    hiredis = None  # type: ignore[assignment]

_MAX_NUMBER = 21
"""Bytes of the longest number, with its sign and one to spare: a length that does not end is no length."""


class Reader(Protocol):
    """Takes bytes as they arrive, and gives replies one by one."""

    def feed(self, data: bytes, /) -> None: ...

    def gets(self) -> Any: ...


class ErrorText(Exception):
    """The text of an error reply."""


class ProtocolError(Exception):
    """The server sent something that is no reply."""


class _Incomplete(Exception):
    """The reply goes on in bytes that have not arrived."""


class ReplyReader:
    """Replies of the second version of the protocol: bytes, integers, None, lists, and `ErrorText`."""

    __slots__ = ("_buffer", "_incomplete", "_position")

    def __init__(self, incomplete: object) -> None:
        self._incomplete = incomplete
        self._buffer = bytearray()
        self._position = 0

    def feed(self, data: bytes, /) -> None:
        self._buffer += data

    def gets(self) -> Any:
        """The next reply, or `incomplete`.

        Raises:
            ProtocolError: the bytes are no reply.
        """
        buffer, start = self._buffer, self._position
        if start == len(buffer):
            return self._incomplete
        try:
            reply = self._reply()
        except _Incomplete:
            self._position = start
            return self._incomplete
        if self._position == len(buffer):
            buffer.clear()
            self._position = 0
        return reply

    def _reply(self) -> Any:
        buffer, start = self._buffer, self._position
        kind = bytes(buffer[start : start + 1])
        end = buffer.find(b"\r\n", start)
        if kind == b"$":
            length = self._number(start, end)
            if length < 0:
                return None
            first, last = end + 2, end + 2 + length
            if len(buffer) < last + 2:
                raise _Incomplete
            if buffer[last : last + 2] != b"\r\n":
                raise ProtocolError("a string does not end where its length says")
            self._position = last + 2
            return bytes(buffer[first:last])
        if kind == b":":
            return self._number(start, end)
        if kind == b"*":
            length = self._number(start, end)
            return None if length < 0 else [self._reply() for _ in range(length)]
        if kind not in (b"+", b"-", b""):
            raise ProtocolError(f"a reply starts with {kind!r}")
        if end < 0:
            raise _Incomplete
        self._position = end + 2
        text = bytes(buffer[start + 1 : end])
        return text if kind == b"+" else ErrorText(text.decode(errors="replace"))

    def _number(self, start: int, end: int) -> int:
        if end < 0:
            if len(self._buffer) - start > _MAX_NUMBER:
                raise ProtocolError("a number does not end")
            raise _Incomplete
        self._position = end + 2
        try:
            return int(self._buffer[start + 1 : end])
        except ValueError as error:
            raise ProtocolError(str(error)) from error


def new_reader(incomplete: object) -> Reader:
    """A reader that returns `incomplete` until the whole of a reply has arrived."""
    if hiredis is None:
        return ReplyReader(incomplete)
    return hiredis.Reader(protocolError=ProtocolError, replyError=ErrorText, notEnoughData=incomplete)
