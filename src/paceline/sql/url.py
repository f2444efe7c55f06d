"""Database URLs, from the users' form to SQLAlchemy's and the drivers'."""

from __future__ import annotations

import re
from typing import NoReturn
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL

from paceline.errors import ConfigurationError
from paceline.extras import DATABASES, require

CONNECT_SECONDS = 10
CONNECT_SECONDS_PER_HOST = 3
"""The connect timeout per host, with several hosts."""

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "oracle": "oracle+oracledb",
}
_SEVERAL_HOSTS = re.compile(
    r"(?P<scheme>postgres[^:/]*://)(?P<user>[^/?#]*@)?(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<rest>(?:[/?#].*)?)"
)
_HOST = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d+))?")


def database_url(text: str) -> URL:
    """The SQLAlchemy URL for what a user typed: `sqlite:///x.db`, `postgresql://…`, `oracle://…`.

    A PostgreSQL URL may name several hosts, as libpq reads it: `postgresql://user@one:5432,two:5432/name`. Connections
    then go to the host that takes writes (`target_session_attrs=read-write`), unless the URL says otherwise.

    Raises:
        ConfigurationError: the text is not such a URL.
    """
    hosts: list[tuple[str, str]] = []
    if several := _SEVERAL_HOSTS.fullmatch(text):
        hosts = [_host_and_port(part) for part in several["hosts"].split(",")]
        text = f"{several['scheme']}{several['user'] or ''}{several['rest']}"
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        _refuse()
    if "@" in (url.host or ""):
        # Checked here: the driver's error for that host would contain half a password.
        raise ConfigurationError("database_url", "write the sign @ in a user's name or password as %40")
    family = url.drivername.partition("+")[0]
    if family not in _DRIVERS:
        raise ConfigurationError(
            "database_url", f"{family!r} is not a database paceline knows; use sqlite, postgresql or oracle"
        )
    if family in DATABASES:
        require(f"a database at {family}://", DATABASES[family])
    url = url.set(drivername=_DRIVERS[family])
    return _postgresql_url(url, hosts) if url.get_backend_name() == "postgresql" else url


def prepared_statements(url: URL) -> tuple[URL, bool | None]:
    """The URL without `prepare=on` or `prepare=off`, and which of these it has; None if it has neither.

    Raises:
        ConfigurationError: it is something else.
    """
    value = url.query.get("prepare")
    if value is None:
        return url, None
    if value not in ("on", "off"):
        raise ConfigurationError("database_url", f"prepare={value!r} is neither on nor off")
    return url.difference_update_query(["prepare"]), value == "on"


def listen_url(url: URL) -> tuple[URL, str | None]:
    """The URL without `listen=…`, and the URL that this names."""
    value = url.query.get("listen")
    if value is None:
        return url, None
    return url.difference_update_query(["listen"]), str(value)


def with_listen_url(url: str, listen: str | None) -> str:
    """A database's URL that names another one to listen at for notifications."""
    if listen is None:
        return url
    return f"{url}{'&' if '?' in url else '?'}listen={quote(listen, safe='')}"


def has_several_hosts(url: URL) -> bool:
    """Whether another host may have the database when one is lost."""
    return "," in str(url.query.get("host", ""))


def _postgresql_url(url: URL, hosts: list[tuple[str, str]]) -> URL:
    """The URL with several hosts as `host=one,two&port=1,2`: the one form that SQLAlchemy and libpq both read."""
    named = url.query.get("host")
    if not hosts and isinstance(named, tuple):  # SQLAlchemy's own form: host=one:1&host=two:2
        hosts = [_host_and_port(part) for part in named]
    if hosts:
        names, ports = zip(*hosts, strict=True)
        url = url.difference_update_query(["host"]).update_query_dict(
            {"host": ",".join(names), "port": ",".join(ports)}
        )
    several = has_several_hosts(url)
    defaults = {"connect_timeout": str(CONNECT_SECONDS_PER_HOST if several else CONNECT_SECONDS)}
    if several:
        # paceline writes, so a standby is useless.
        defaults["target_session_attrs"] = "read-write"
    return url.update_query_dict({name: value for name, value in defaults.items() if name not in url.query})


def _host_and_port(part: str) -> tuple[str, str]:
    host = _HOST.fullmatch(part)
    if host is None:
        _refuse()
    return host["ipv6"] or host["name"], host["port"] or "5432"


def _refuse() -> NoReturn:
    raise ConfigurationError(
        "database_url", "not a database URL; write for example sqlite:///paceline.db or postgresql://host/name"
    ) from None
