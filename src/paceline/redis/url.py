"""Addresses, topology and login of Redis, from a URL.

    redis://[user:password@]host[:port][/database]              one server
    redis+sentinel://host:port,host:port/service[/database]     the master the sentinels name
    redis+cluster://host:port,host:port                         a cluster, found through any of these nodes
    unix://[user:password@]/path/to/socket[?db=0]               one server, by its Unix socket (or redis+unix://)

`rediss` instead of `redis` speaks TLS; `valkey` and `valkeys` may stand for them. Options follow as a query: `timeout`
in seconds, 0.5 if not given; `prefix` of every key of limits; `credentials`, a function that returns user name and
password (`package.module:name`);
`sentinel_username` and `sentinel_password`; for TLS `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`
(`required` or `none`).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, unquote

from paceline.errors import ConfigurationError, StoreUnavailable

DEFAULT_TIMEOUT = 0.5
REDIS, VALKEY = "redis", "valkey"
SOCKET_SCHEMES = ("unix", "redis+unix")
_PORTS = {"sentinel": 26379}
_OPTIONS = {
    "timeout",
    "prefix",
    "protocol",
    "credentials",
    "sentinel_username",
    "sentinel_password",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
}


class Address(NamedTuple):
    """A host and a port; of a Unix socket its path, and 0."""

    host: str
    port: int

    @property
    def is_socket(self) -> bool:
        """Whether it is a Unix socket."""
        return self.port == 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class Topology(StrEnum):
    """One server, a master found through Sentinel, or a cluster."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Login:
    """A password, and perhaps a user name. Not in its `repr`. A `provider` is called for each connection, and returns
    both."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    setting: str = field(default="redis_url", compare=False)
    """The setting that holds it."""
    provider: Callable[[], tuple[str | None, str]] | None = field(default=None, repr=False)

    def current(self) -> Login:
        """The login of a connection that is made now.

        Raises:
            StoreUnavailable: the provider failed.
        """
        if self.provider is None:
            return self
        try:
            username, password = self.provider()
        except Exception as error:
            raise StoreUnavailable(f"the provider of Redis credentials failed: {type(error).__name__}") from error
        return Login(username or None, password, self.setting)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL. `timeout` is the deadline of one call, and of making a connection, in seconds."""

    topology: Topology
    addresses: tuple[Address, ...]
    login: Login = Login()
    database: int = 0
    service: str = ""
    sentinel_login: Login = Login()
    tls: ssl.SSLContext | None = None
    timeout: float = DEFAULT_TIMEOUT
    prefix: str = ""
    """The beginning of every key of limits."""

    @classmethod
    def parse(cls, text: str, *, timeout: float | None = None) -> RedisUrl:
        """The URL in `text`; a `timeout` given here wins over the URL's.

        Raises:
            ConfigurationError: the URL can't be used.
        """
        scheme, separator, rest = text.partition("://")
        if scheme.startswith(VALKEY):
            scheme = REDIS + scheme.removeprefix(VALKEY)
        if scheme in SOCKET_SCHEMES:
            return cls._parse_socket(rest, timeout)
        base, _, topology = scheme.partition("+")
        if not separator or base not in ("redis", "rediss") or topology not in ("", "sentinel", "cluster"):
            raise _wrong("use redis://, rediss://, redis+sentinel://, redis+cluster:// or unix://")
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        credentials, _, hosts = place.rpartition("@")
        if "@" in path + query and not credentials:
            raise _wrong("write the signs / ? # in a user's name or password as %2F %3F %23")
        options = _options(query)
        steps = [unquote(step) for step in path.split("/") if step]
        service = ""
        if topology == "sentinel":
            if not steps:
                raise _wrong("name the service: redis+sentinel://host:26379/mymaster")
            service = steps.pop(0)
        database = _database(steps)
        if topology == "cluster" and database:
            raise _wrong("a cluster has only database 0")
        return cls(
            topology=Topology(topology or "single"),
            addresses=_addresses(hosts, topology),
            login=_login(credentials, options),
            database=database,
            service=service,
            sentinel_login=_sentinel_login(options),
            tls=_tls(options) if base == "rediss" else None,
            timeout=_timeout(options.get("timeout", DEFAULT_TIMEOUT) if timeout is None else timeout),
            prefix=_prefix(options),
        )

    @classmethod
    def _parse_socket(cls, rest: str, timeout: float | None) -> RedisUrl:
        rest, _, query = rest.partition("?")
        credentials, _, path = rest.rpartition("@")
        options = _options(query, _OPTIONS | {"db"})
        if not path.startswith("/"):
            raise _wrong("name the socket by its whole path: unix:///run/redis.sock")
        if tls := sorted(name for name in options if name.startswith(("ssl_", "sentinel_"))):
            raise _wrong(f"{tls[0]} has no meaning for a Unix socket")
        return cls(
            topology=Topology.SINGLE,
            addresses=(Address(unquote(path), 0),),
            login=_login(credentials, options),
            database=_database([options["db"]] if "db" in options else []),
            timeout=_timeout(options.get("timeout", DEFAULT_TIMEOUT) if timeout is None else timeout),
            prefix=_prefix(options),
        )

    def __str__(self) -> str:
        """The URL without secrets."""
        scheme = "redis" if self.tls is None else "rediss"
        places = ",".join(map(str, self.addresses))
        if self.addresses[0].is_socket:
            return f"unix://{places}?db={self.database}"
        match self.topology:
            case Topology.SINGLE:
                return f"{scheme}://{places}/{self.database}"
            case Topology.SENTINEL:
                return f"{scheme}+sentinel://{places}/{self.service}/{self.database}"
            case Topology.CLUSTER:
                return f"{scheme}+cluster://{places}"


_IPV6 = re.compile(r"\[(?P<host>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\[\]\s]+)?)\](:(?P<port>[^:]*))?")
_NAME = re.compile(r"[^\s\[\]]+")


def _wrong(problem: str) -> ConfigurationError:
    return ConfigurationError("redis_url", problem)


def _options(query: str, known: Set[str] = _OPTIONS) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(options) - known):
        raise _wrong(f"unknown option {unknown[0]!r}; known are {', '.join(sorted(known))}")
    if options.get("protocol", "2") != "2":
        raise _wrong("protocol can only be 2: limits need nothing of RESP3; leave it out")
    return options


def _prefix(options: dict[str, str]) -> str:
    prefix = options.get("prefix", "")
    if "{" in prefix or "}" in prefix or len(prefix) > 128 or not prefix.isprintable():
        raise _wrong("prefix has up to 128 printable characters, and no braces: those mark what a cluster hashes")
    return prefix


def _addresses(hosts: str, topology: str) -> tuple[Address, ...]:
    places = hosts.split(",") if topology else [hosts]
    return tuple(_address(place, _PORTS.get(topology, 6379)) for place in places)


def _address(place: str, default_port: int) -> Address:
    if not place:
        return Address("localhost", default_port)
    literal = _IPV6.fullmatch(place)
    host, _, port = (literal["host"], "", literal["port"] or "") if literal else place.partition(":")
    host = unquote(host)
    if not (literal or _NAME.fullmatch(host)) or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise _wrong(f"{place!r} is not host:port")
    return Address(host, int(port) if port else default_port)


def _login(credentials: str, options: dict[str, str]) -> Login:
    username, colon, password = credentials.partition(":")
    if credentials and not colon:
        raise _wrong("write user:password@host, or :password@host")
    if "credentials" in options:
        if credentials:
            raise _wrong("has a password and names a provider of credentials; give one of them")
        return Login(provider=_provider(options["credentials"]))
    return Login(unquote(username) or None, unquote(password) or None)


def _provider(name: str) -> Callable[[], tuple[str | None, str]]:
    module, colon, attribute = name.partition(":")
    try:
        provider = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise _wrong(f"credentials: {name!r} can't be imported: {error}") from None
    if not callable(provider):
        raise _wrong("credentials is a function that returns user name and password, as package.module:name")
    return cast(Callable[[], tuple[str | None, str]], provider)


def _sentinel_login(options: dict[str, str]) -> Login:
    setting = "sentinel_username, sentinel_password in redis_url"
    return Login(options.get("sentinel_username"), options.get("sentinel_password"), setting)


def _database(steps: list[str]) -> int:
    if not steps:
        return 0
    if len(steps) > 1 or not steps[0].isdecimal():
        raise _wrong(f"{'/'.join(steps)!r} is not the number of a database")
    return int(steps[0])


def _timeout(value: str | float) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 3600:
        raise _wrong(f"timeout {value!r} is not a number of seconds above 0")
    return seconds


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    needed = options.get("ssl_cert_reqs", "required")
    if needed not in ("required", "none"):
        raise _wrong("ssl_cert_reqs is required or none")
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if needed == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except OSError as error:
        raise _wrong(f"a TLS file can't be used: {error.strerror or error}") from error
    return context
