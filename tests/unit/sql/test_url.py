"""Database URLs, as users write them."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa

from paceline.errors import ConfigurationError
from paceline.sql.url import database_url, has_several_hosts, listen_url, prepared_statements, with_listen_url


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("postgresql://me:pw@one:1,two:2/db", "one,two", "1,2"),
        ("postgres://me:pw@one,two:2,three/db", "one,two,three", "5432,2,5432"),
        ("postgresql://me:pw@[::1]:1,[fe80::2]/db", "::1,fe80::2", "1,5432"),
        ("postgresql://me:pw@/db?host=one:1&host=two:2", "one,two", "1,2"),
        ("postgresql://me:pw@/db?host=one,two&port=1,2", "one,two", "1,2"),
        ("postgresql+psycopg://me:a,b%40@one:1,two:2/db", "one,two", "1,2"),
    ],
)
def test_a_url_may_name_several_hosts(text: str, host: str, port: str) -> None:
    url = database_url(text)
    assert has_several_hosts(url)
    _, arguments = sa.create_engine(url).dialect.create_connect_args(url)
    assert {name: arguments[name] for name in ("host", "port", "user", "dbname")} == {
        "host": host,
        "port": port,
        "user": "me",
        "dbname": "db",
    }
    # libpq reads the same in it: what listens for hints connects so.
    read = psycopg.conninfo.conninfo_to_dict(url.set(drivername="postgresql").render_as_string(hide_password=False))
    assert (read["host"], read["port"], read["target_session_attrs"]) == (host, port, "read-write")


def test_a_url_decides_for_itself_which_host_it_wants_and_how_long_it_waits() -> None:
    url = database_url("postgresql://one,two/db?target_session_attrs=any&connect_timeout=7")
    assert (url.query["target_session_attrs"], url.query["connect_timeout"]) == ("any", "7")
    assert database_url("postgresql://one,two/db").query["connect_timeout"] == "3"
    single = database_url("postgresql://one/db?connect_timeout=7")
    assert single.query == {"connect_timeout": "7"}
    assert not has_several_hosts(single)
    assert not has_several_hosts(database_url("postgresql://me:a,b@one/db"))


@pytest.mark.parametrize(
    "text", ["postgresql://one,/db", "postgresql://,one/db", "postgresql://one:x,two/db", "postgresql://[::1,two/db"]
)
def test_a_list_of_hosts_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a database URL"):
        database_url(text)


def test_a_password_with_a_bare_at_sign_is_named_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="%40") as refused:
        database_url("postgresql://me:s3cret@x@one,two/db")
    assert "s3cret" not in str(refused.value)


def test_whether_statements_are_prepared() -> None:
    for text, expected in (("", None), ("?prepare=on", True), ("?prepare=off", False)):
        url, prepares = prepared_statements(database_url(f"postgresql://localhost/db{text}"))
        assert prepares is expected
        assert "prepare" not in url.query
    with pytest.raises(ConfigurationError, match="prepare='maybe' is neither on nor off"):
        prepared_statements(database_url("postgresql://localhost/db?prepare=maybe"))


def test_another_url_to_listen_at() -> None:
    direct = "postgresql://me:p%40ss@db:5432/name?sslmode=require"
    for pooled in ("postgresql://pool:6432/name", "postgresql://pool:6432/name?prepare=on"):
        assert with_listen_url(pooled, None) == pooled
        url, listen = listen_url(database_url(with_listen_url(pooled, direct)))
        assert listen == direct
        assert "listen" not in url.query
    assert listen_url(database_url("postgresql://localhost/db"))[1] is None
