"""Redis URLs, as users write them."""

from __future__ import annotations

import ssl

import pytest

from paceline.errors import ConfigurationError
from paceline.redis.url import Address, Login, RedisUrl, Topology


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://localhost", "redis://localhost:6379/0"),
        ("redis://", "redis://localhost:6379/0"),
        ("redis://cache:7000/3", "redis://cache:7000/3"),
        ("redis://[::1]:7000", "redis://::1:7000/0"),
        ("redis+sentinel://a:1,b/main/2", "redis+sentinel://a:1,b:26379/main/2"),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("rediss+cluster://a:1", "rediss+cluster://a:1"),
    ],
)
def test_where_redis_is(text: str, shown: str) -> None:
    assert str(RedisUrl.parse(text)) == shown


def test_everything_at_once() -> None:
    url = RedisUrl.parse("redis+sentinel://me:p%40ss@s1:1,s2:2/main/4?timeout=0.25&sentinel_password=s3cret")
    assert url == RedisUrl(
        topology=Topology.SENTINEL,
        addresses=(Address("s1", 1), Address("s2", 2)),
        login=Login("me", "p@ss"),
        database=4,
        service="main",
        sentinel_login=Login(None, "s3cret"),
        timeout=0.25,
    )


def test_nothing_secret_is_shown() -> None:
    url = RedisUrl.parse("redis+sentinel://me:hunter2@s1:1/main?sentinel_password=hunter3")
    assert "hunter" not in f"{url} {url!r}"


def test_a_given_timeout_wins() -> None:
    assert RedisUrl.parse("redis://h?timeout=3", timeout=0.5).timeout == 0.5


def test_tls_checks_certificates_by_default() -> None:
    strict, lax = RedisUrl.parse("rediss://h").tls, RedisUrl.parse("rediss://h?ssl_cert_reqs=none").tls
    assert strict is not None
    assert lax is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert lax.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    "text",
    [
        "redis:/h",
        "redis+raft://h",
        "redis://h:port",
        "redis://h:70000",
        "redis://a:1,b:2",
        "redis://h/one",
        "redis://h/1/2",
        "redis://password@h",
        "redis+sentinel://h:1",
        "redis+cluster://h:1/3",
        "redis://h?db=3",
        "redis://h?timeout=0",
        "redis://h?timeout=soon",
        "rediss://h?ssl_ca_certs=/nowhere/ca.pem",
        "rediss://h?ssl_cert_reqs=maybe",
    ],
)
def test_what_can_not_work_is_refused_and_the_url_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^redis_url: ") as refused:
        RedisUrl.parse(text.replace("://", "://me:hunter2@") if "@" not in text and "://" in text else text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "hosts", ["[::1", "[::1]x", "[::1]6379", "[]", "[]:6379", "a b", "cache]:6379", "[zz]:1", "%20"]
)
def test_a_host_that_can_be_none_is_refused(hosts: str) -> None:
    # It would fail at every decision, which on_error=open lets pass.
    with pytest.raises(ConfigurationError, match="is not host:port"):
        RedisUrl.parse(f"redis://{hosts}")


@pytest.mark.parametrize(
    ("hosts", "host"),
    [
        ("[::1]", "::1"),
        ("[fe80::1%25eth0]:7000", "fe80::1%eth0"),
        ("my_cache.local", "my_cache.local"),
        ("käse", "käse"),
    ],
)
def test_hosts_of_every_kind(hosts: str, host: str) -> None:
    assert RedisUrl.parse(f"redis://{hosts}").addresses[0].host == host
