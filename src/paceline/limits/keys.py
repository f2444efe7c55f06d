"""Key resolvers: which key a request counts against. The same for every web framework.

    header("X-API-Key")        a header's value
    principal()                the authenticated user
    client_address()           the client's address; forwarding headers count only from trusted proxies
    path()                     the path
    route()                    the route's pattern: /items/1 and /items/2 are both /items/{id}
    method()                   the method: GET, POST, …
    composite(a, b)            several of them together
    everyone("search")         one key for all requests, on purpose
    lambda request: ...        anything, from the framework's own request; may be async

A request without its key is an error (HTTP 400), never a bucket shared by mistake. To allow such requests, choose how
they count: `default="anonymous"` puts them on one key, `skip=True` does not limit them. If a function returns `None`,
the request is not limited. Requests that are not limited are counted: `Limiter.exempt_calls`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from inspect import isawaitable, iscoroutinefunction
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits import addresses

log = logging.getLogger("paceline.limits")

KeyValue: TypeAlias = str | int | UUID | None


class RequestSource(Protocol):
    """What key resolvers read of a request, in any framework."""

    @property
    def native(self) -> Any:
        """The framework's own request object."""
        ...

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def route(self) -> str | None:
        """The pattern of the route that the request matches; `None` if it matches none."""
        ...

    @property
    def peer(self) -> str | None:
        """The address at the other end of the connection; `None` if it has none (a Unix socket), and
        `addresses.UNNAMED_PROXY` if the server has replaced it by one that the request names."""
        ...

    def header(self, name: str) -> str | None:
        """A header's value; values of a repeated header joined with commas, in order."""
        ...

    def principal(self) -> KeyValue | Awaitable[KeyValue]:
        """The authenticated caller, or `None`."""
        ...


class KeyStart(NamedTuple):
    """What is known of a key without a request: how it begins, and whether that is all of it."""

    text: str
    is_whole: bool

    def __str__(self) -> str:
        return repr(self.text if self.is_whole else f"{self.text}…")


class Key:
    """Finds the key of a request.

    Calling it returns the key, or `None` if the request is not limited; or an awaitable of the same, if its function is
    async. It raises `InvalidInput` if the request has no key, and there is neither a `default` nor `skip`.
    """

    __slots__ = ("default", "find", "from_peer", "is_async", "none_skips", "prefix", "skip", "source", "start", "what")

    def __init__(
        self,
        source: str,
        what: str,
        find: Callable[[RequestSource], KeyValue | Awaitable[KeyValue]],
        *,
        prefix: str = "",
        default: str | None = None,
        skip: bool = False,
        is_async: bool = False,
        from_peer: Callable[[str], str | None] | None = None,
        start: KeyStart | None = None,
        none_skips: bool = False,
    ) -> None:
        if default is not None and (skip or not isinstance(default, str) or not default):
            raise ConfigurationError("default", "give a key that is not empty, or skip=True, not both")
        self.source = source
        self.what = what
        self.find = find
        self.prefix = prefix
        self.default = default
        self.skip = skip
        self.is_async = is_async
        """Whether it is known to need an event loop."""
        self.from_peer = from_peer
        """The key by the peer's address alone; returns `None` where more of the request is needed."""

        self.start = KeyStart(prefix, False) if start is None else start
        self.none_skips = none_skips
        """Whether `None`, but no empty text, means that the request is not limited."""

    def starts(self) -> tuple[KeyStart, ...]:
        """How its keys may begin; none if requests may be without a key."""
        if self.skip:
            return ()
        return (self.start,) if self.default is None else (self.start, KeyStart(self.default, True))

    def __call__(self, request: RequestSource) -> str | Awaitable[str | None] | None:
        value = self.find(request)
        if isinstance(value, str):
            return self.prefix + value if value else self._missing()
        if isawaitable(value):
            return self._resolve_later(value)
        return self._check(value)

    def __repr__(self) -> str:
        return f"<key from {self.source}>"

    async def _resolve_later(self, value: Awaitable[KeyValue]) -> str | None:
        return self._check(await value)

    def _check(self, value: KeyValue) -> str | None:
        if value is None and self.none_skips:
            return None
        if value is None or value == "":
            return self._missing()
        if isinstance(value, bool) or not isinstance(value, str | int | UUID):
            # An object's `str` may differ per request (its address), and then nothing would be limited.
            raise ConfigurationError("key", f"{self.source} gave a {type(value).__name__}; give a string")
        return f"{self.prefix}{value}"

    def _missing(self) -> str | None:
        if self.skip:
            return None
        if self.default is not None:
            return self.default
        raise InvalidInput(self.source, self.what)


KeyFunction: TypeAlias = Callable[[Any], KeyValue | Awaitable[KeyValue]]


def header(name: str, *, prefix: str = "", default: str | None = None, skip: bool = False) -> Key:
    """The value of a header."""
    return Key(
        name,
        f"send the header {name}; requests are limited by it",
        methodcaller("header", name.lower()),
        prefix=prefix,
        default=default,
        skip=skip,
    )


def principal(*, prefix: str = "", default: str | None = None, skip: bool = False) -> Key:
    """The authenticated user, from the framework, or from the `principal=` given to its integration."""
    return Key(
        "principal",
        "authenticate; requests are limited by user",
        methodcaller("principal"),
        prefix=prefix,
        default=default,
        skip=skip,
    )


def client_address(
    *,
    trusted_proxies: Iterable[str] = (),
    forwarded: str = "X-Forwarded-For",
    ipv4_prefix: int = 32,
    ipv6_prefix: int = 64,
    prefix: str = "",
    default: str | None = None,
    skip: bool = False,
) -> Key:
    """The client's address; an IPv6 address by its /64, because a subscriber owns that many.
    `ipv4_prefix` and `ipv6_prefix` choose other blocks.

    `forwarded` names the one header your proxies write, `X-Forwarded-For` or `Forwarded`; clients can forge the other.
    It is read only if the peer lies in `trusted_proxies`, networks such as `10.0.0.0/8`, or `unix` for peers on a Unix
    socket. The client is then the nearest address that is no trusted proxy. Without `trusted_proxies`, all requests for
    which uvicorn has replaced the peer by an address from that header count as one client, and a warning says so.
    """
    proxies, unix = addresses.networks(trusted_proxies)
    field = forwarded.lower()
    if field not in ("x-forwarded-for", "forwarded"):
        raise ConfigurationError("forwarded", f"{forwarded!r} is neither X-Forwarded-For nor Forwarded")
    for option, length, longest in (("ipv4_prefix", ipv4_prefix, 32), ("ipv6_prefix", ipv6_prefix, 128)):
        if not isinstance(length, int) or not 1 <= length <= longest:
            raise ConfigurationError(option, f"{length!r} is not from 1 to {longest}")

    @lru_cache(4096)
    def of_untrusted_peer(named: str) -> str | None:
        """The key of a peer that is no trusted proxy; `None` if it is one, or no address."""
        peer = addresses.parse(named)
        if peer is None or addresses.trusted(peer, proxies):
            return None
        return prefix + addresses.block(peer, ipv4_prefix, ipv6_prefix)

    warns = True

    def of_unnamed_proxy() -> str:
        nonlocal warns
        if warns:
            warns = False
            log.warning(
                "requests come through a proxy that is not named, so they count as one client; "
                "name it: client_address(trusted_proxies=['127.0.0.1'])"
            )
        return prefix + addresses.UNNAMED_PROXY

    def find(request: RequestSource) -> str | None:
        named = request.peer
        if named == addresses.UNNAMED_PROXY:
            if not (proxies or unix):
                return of_unnamed_proxy()
            named = None
            peer_is_trusted = True
        else:
            peer_is_trusted = unix and not named
        if named and (key := of_untrusted_peer(named)) is not None:
            return key
        peer = addresses.parse(named) if named else None
        if peer is None and not peer_is_trusted:
            return None
        value = request.header(field)
        client = addresses.nearest_untrusted(peer, addresses.hops(field, value) if value else [], proxies)
        return prefix + addresses.block(client, ipv4_prefix, ipv6_prefix) if client is not None else None

    what = "the client's address is unknown; requests are limited by it"
    return Key(
        "client address",
        what,
        find,
        default=default,
        skip=skip,
        from_peer=of_untrusted_peer,
        start=KeyStart(prefix, False),
    )


def path(*, prefix: str = "") -> Key:
    """The path of the request."""
    return Key("path", "the request has no path", attrgetter("path"), prefix=prefix)


def route(*, prefix: str = "") -> Key:
    """The pattern of the route, as the framework writes it. Requests that match no route share one key."""
    return Key("route", "the request has no route", attrgetter("route"), prefix=prefix, default=f"{prefix}(no route)")


def method(*, prefix: str = "") -> Key:
    """The method of the request, in upper case; HEAD counts as GET."""
    return Key("method", "the request has no method", _method, prefix=prefix)


def _method(request: RequestSource) -> str:
    name = request.method.upper()
    return "GET" if name == "HEAD" else name


def everyone(name: str) -> Key:
    """One key for all requests, which share the limit."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError("key", "everyone() needs a name for the key all requests share")
    return Key("everyone", "", lambda request: name, start=KeyStart(name, True))


def composite(*parts: Key | KeyFunction, separator: str = "|") -> Key:
    """Several keys as one. No two combinations give the same key; a part that skips skips the whole."""
    if len(parts) < 2:
        raise ConfigurationError("key", "composite() needs two keys or more")
    keys = [key_from(part) for part in parts]

    def find(request: RequestSource) -> str | Awaitable[str | None] | None:
        values = [key(request) for key in keys]
        if any(isawaitable(value) for value in values):
            return gather(values)
        return join(values)  # type: ignore[arg-type]  # none of them is awaitable

    async def gather(values: list[str | Awaitable[str | None] | None]) -> str | None:
        return join([await value if isawaitable(value) else value for value in values])

    def join(values: list[str | None]) -> str | None:
        if None in values:
            return None
        return separator.join(str(value).replace("%", "%25").replace(separator, escaped) for value in values)

    if len(separator) != 1 or separator == "%":
        raise ConfigurationError("separator", "use one character, not %")
    escaped = f"%{ord(separator):02X}"
    # Parts that are missing raise by themselves, so what is missing here was skipped.
    source, is_async = " and ".join(key.source for key in keys), any(key.is_async for key in keys)
    return Key(source, "", find, skip=True, is_async=is_async)


def key_from(value: Key | KeyFunction) -> Key:
    """A `Key` as it is, or made of a function of the framework's request."""
    if isinstance(value, Key):
        return value
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        return Key(
            f"key function {name}",
            "it found an empty key",
            lambda request: value(request.native),
            is_async=iscoroutinefunction(value),
            none_skips=True,
        )
    raise ConfigurationError(
        "key",
        f"{value!r} is no key resolver; use header(...), principal(), client_address() or a function, "
        "or everyone('name') for one key shared by all",
    )
