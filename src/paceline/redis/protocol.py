"""The Redis protocol: building commands and script calls. Plain bytes, no input or output, shared by both clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.metadata import version
from pathlib import Path

from paceline.redis.url import Login


def packed(*words: bytes) -> bytes:
    """A command in the Redis protocol."""
    return b"*%d\r\n" % len(words) + b"".join(map(word, words))


def word(value: bytes) -> bytes:
    """One argument of a command."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def handshake(login: Login, database: int) -> list[bytes]:
    """The first commands of a new connection. None of the replies may be an error."""
    commands = []
    if login.password is not None:
        names = [login.username] if login.username is not None else []
        commands.append(packed(b"AUTH", *(text.encode() for text in (*names, login.password))))
    if database:
        commands.append(packed(b"SELECT", b"%d" % database))
    commands.append(packed(b"PING"))
    return commands


def introduction() -> list[bytes]:
    """Commands that name this library to the server, for its CLIENT LIST. Redis below 7.2 knows none of them: their
    replies may be errors."""
    setinfo = (b"CLIENT", b"SETINFO")
    return [packed(*setinfo, b"LIB-NAME", b"paceline"), packed(*setinfo, b"LIB-VER", _version())]


def find_master(service: str) -> bytes:
    """The command for the master's address at a sentinel: host and port, or nothing."""
    return packed(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode())


ROLE = packed(b"ROLE")
ASKING = packed(b"ASKING")
CLUSTER_SLOTS = packed(b"CLUSTER", b"SLOTS")


class Script:
    """A Lua script, called by its digest."""

    __slots__ = ("_by_digest", "_with_source")

    def __init__(self, folder: Path, *names: str) -> None:
        source = b"\n".join((folder / f"{name}.lua").read_bytes() for name in names)
        digest = sha1(source, usedforsecurity=False).hexdigest().encode()
        self._by_digest = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % digest
        self._with_source = b"$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (len(source), source)

    def head(self, keys: int, arguments: int) -> bytes:
        """A call up to the number of its keys; packed keys and arguments follow."""
        return b"*%d\r\n%b$%d\r\n%d\r\n" % (3 + keys + arguments, self._by_digest, len(str(keys)), keys)

    def call(self, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
        return self.head(len(keys), len(arguments)) + b"".join(map(word, (*keys, *arguments)))

    def with_source(self, command: bytes) -> bytes:
        """`command` with the script itself instead of its digest: for a server that replied NOSCRIPT."""
        return command.replace(self._by_digest, self._with_source, 1)


@cache
def _version() -> bytes:
    """Of paceline. To look it up, the package's whole metadata is parsed."""
    return version("paceline").encode()
