"""Key resolvers: the right key, no key by mistake, no forged address."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import pytest

from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits import keys
from paceline.limits.keys import (
    client_address,
    composite,
    everyone,
    header,
    key_from,
    method,
    path,
    principal,
    route,
)


@dataclass
class Request:
    headers: dict[str, str] = field(default_factory=dict)
    peer: str | None = "198.51.100.7"
    path: str = "/a/b"
    method: str = "GET"
    user: keys.KeyValue | Awaitable[keys.KeyValue] = None
    native: Any = None
    route: str | None = None

    def header(self, name: str) -> str | None:
        return self.headers.get(name)

    def principal(self) -> keys.KeyValue | Awaitable[keys.KeyValue]:
        return self.user


def test_a_header_is_a_key_whatever_its_case() -> None:
    assert header("X-API-Key")(Request({"x-api-key": "abc"})) == "abc"
    assert header("X-API-Key", prefix="key:")(Request({"x-api-key": "abc"})) == "key:abc"


@pytest.mark.parametrize("headers", [{}, {"x-api-key": ""}])
def test_peer_bug_09_a_missing_key_is_an_error_or_an_explicit_choice(headers: dict[str, str]) -> None:
    request = Request(headers)
    with pytest.raises(InvalidInput, match="send the header X-API-Key"):
        header("X-API-Key")(request)
    assert header("X-API-Key", default="anonymous")(request) == "anonymous"
    assert header("X-API-Key", skip=True)(request) is None


def test_a_default_and_a_skip_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="default"):
        header("X", default="a", skip=True)
    with pytest.raises(ConfigurationError, match="default"):
        header("X", default="")


def test_the_principal_is_a_key() -> None:
    assert principal()(Request(user="ada")) == "ada"
    assert principal(prefix="user:")(Request(user=7)) == "user:7"
    with pytest.raises(InvalidInput, match="authenticate"):
        principal()(Request(user=None))


async def test_the_principal_may_be_found_asynchronously() -> None:
    async def find(user: str | None) -> str | None:
        return user

    pending = principal(prefix="user:")(Request(user=find("ada")))
    assert not isinstance(pending, str | None)
    assert await pending == "user:ada"
    missing = principal()(Request(user=find(None)))
    assert not isinstance(missing, str | None)
    with pytest.raises(InvalidInput):
        await missing


def test_path_and_everyone() -> None:
    assert path()(Request()) == "/a/b"
    assert everyone("search")(Request()) == "search"
    with pytest.raises(ConfigurationError):
        everyone("")


def test_a_function_gets_the_frameworks_request() -> None:
    assert key_from(lambda request: request["user"])(Request(native={"user": "ada"})) == "ada"
    number = uuid.uuid4()
    assert key_from(lambda request: number)(Request()) == str(number)


def test_a_function_that_returns_none_does_not_limit_the_request() -> None:
    assert key_from(lambda request: None)(Request()) is None


async def test_an_async_function_that_returns_none_does_not_limit_the_request() -> None:
    async def find(request: object) -> None:
        return None

    pending = key_from(find)(Request())
    assert not isinstance(pending, str | None)
    assert await pending is None


def test_a_function_that_returns_an_empty_key_is_named() -> None:
    def find(request: object) -> str:
        return ""

    with pytest.raises(InvalidInput, match="key function find"):
        key_from(find)(Request())


def test_route_and_method() -> None:
    assert route()(Request(route="/items/{id}")) == "/items/{id}"
    assert route(prefix="r:")(Request(route=None)) == "r:(no route)"
    assert method()(Request(method="HEAD")) == "GET"
    assert composite(method(), route())(Request(method="POST", route="/a")) == "POST|/a"


async def test_a_function_may_be_async() -> None:
    async def find(request: Any) -> str:
        return str(request)

    pending = key_from(find)(Request(native="ada"))
    assert not isinstance(pending, str | None)
    assert await pending == "ada"


@pytest.mark.parametrize("wrong", [object(), True, 1.5, ["a"]])
def test_what_has_no_stable_text_is_no_key(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a string"):
        key_from(lambda request: wrong)(Request())


@pytest.mark.parametrize("wrong", ["X-API-Key", None, 3])
def test_peer_bug_09_a_constant_is_no_key_by_mistake(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="everyone"):
        key_from(wrong)


def test_a_composite_never_confuses_two_combinations() -> None:
    key = composite(header("a"), header("b"))
    seen = {
        key(Request({"a": a, "b": b}))
        for a in ("x", "x|y", "x%7Cy", "x%", "%7C")
        for b in ("z", "y|z", "|z", "7C", "%7Cz")
    }
    assert len(seen) == 25
    assert key(Request({"a": "x", "b": "z"})) == "x|z"


async def test_a_composite_of_sync_and_async_parts() -> None:
    async def find(request: object) -> str:
        return "u"

    pending = composite(find, path())(Request())
    assert not isinstance(pending, str | None)
    assert await pending == "u|/a/b"


def test_a_composite_skips_if_a_part_skips_and_fails_if_a_part_is_missing() -> None:
    assert composite(header("a", skip=True), path())(Request()) is None
    with pytest.raises(InvalidInput, match="send the header a"):
        composite(header("a"), path())(Request())
    with pytest.raises(ConfigurationError):
        composite(path())
    for separator in ("", "%", "--"):
        with pytest.raises(ConfigurationError):
            composite(path(), path(), separator=separator)


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_a_key(peer: str, key: str) -> None:
    assert client_address()(Request(peer=peer)) == key


def test_the_prefix_of_ipv6_addresses_can_be_chosen() -> None:
    assert client_address(ipv6_prefix=48)(Request(peer="2001:db8:1:2::1")) == "2001:db8:1::/48"
    assert client_address(ipv6_prefix=128)(Request(peer="2001:db8:1:2::1")) == "2001:db8:1:2::1"


def test_the_prefix_of_ipv4_addresses_can_be_chosen() -> None:
    """As django-ratelimit's `RATELIMIT_IPV4_MASK` does."""
    key = client_address(ipv4_prefix=24, trusted_proxies=["10.0.0.0/8"])
    assert key(Request(peer="192.0.2.9")) == key(Request(peer="192.0.2.200")) == "192.0.2.0/24"
    assert key(Request({"x-forwarded-for": "192.0.2.9"}, peer="10.0.0.1")) == "192.0.2.0/24"
    assert key(Request(peer="192.0.3.9")) == "192.0.3.0/24"
    assert client_address()(Request(peer="192.0.2.9")) == "192.0.2.9"


def test_peer_bug_09_a_forwarded_address_is_believed_only_from_a_trusted_proxy() -> None:
    forged = {"x-forwarded-for": "203.0.113.1", "forwarded": "for=203.0.113.2"}
    assert client_address()(Request(forged)) == "198.51.100.7"
    assert client_address(trusted_proxies=["10.0.0.0/8"])(Request(forged)) == "198.51.100.7"
    behind = Request(forged, peer="10.1.2.3")
    assert client_address(trusted_proxies=["10.0.0.0/8"])(behind) == "203.0.113.1"
    assert client_address(trusted_proxies=["10.0.0.0/8"], forwarded="Forwarded")(behind) == "203.0.113.2"
    assert client_address(trusted_proxies=["10.0.0.0/8"])(Request(forged, peer="::ffff:10.1.2.3")) == "203.0.113.1"


@pytest.mark.parametrize(
    ("listed", "key"),
    [
        ("203.0.113.1", "203.0.113.1"),
        ("6.6.6.6, 203.0.113.1", "203.0.113.1"),
        ("6.6.6.6, 203.0.113.1, 10.9.9.9", "203.0.113.1"),
        ("10.8.8.8, 10.9.9.9", "10.8.8.8"),
        ("garbage, 203.0.113.1:4711", "203.0.113.1"),
        ("[2001:db8::1]:4711", "2001:db8::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("::ffff:203.0.113.1", "203.0.113.1"),
    ],
)
def test_the_client_is_the_nearest_address_that_is_no_trusted_proxy(listed: str, key: str) -> None:
    request = Request({"x-forwarded-for": listed}, peer="10.0.0.1")
    assert client_address(trusted_proxies=["10.0.0.0/8"])(request) == key


@pytest.mark.parametrize("listed", ["unknown", "", "203.0.113.1, ", "_hidden"])
def test_an_unreadable_word_of_a_trusted_proxy_is_a_missing_key(listed: str) -> None:
    resolver = client_address(trusted_proxies=["10.0.0.1/32"])
    request = Request({"x-forwarded-for": listed}, peer="10.0.0.1")
    if listed:
        with pytest.raises(InvalidInput, match="address is unknown"):
            resolver(request)
    else:
        assert resolver(request) == "10.0.0.1"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('for=192.0.2.43, for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::/64"),
        ("proto=https;For=192.0.2.43;by=10.0.0.1", "192.0.2.43"),
        ('for="192.0.2.43:80"', "192.0.2.43"),
        ('for=6.6.6.6, for=192.0.2.43;host="a,for=7.7.7.7"', "192.0.2.43"),
    ],
)
def test_the_forwarded_header_is_read(value: str, key: str) -> None:
    resolver = client_address(trusted_proxies=["10.0.0.0/8"], forwarded="Forwarded")
    assert resolver(Request({"forwarded": value}, peer="10.0.0.1")) == key


@pytest.mark.parametrize("forged", ['for=6.6.6.6;x="', 'for="', 'for="6.6.6.6'])
@pytest.mark.parametrize("written", ["for=192.0.2.43", 'for="[2001:db8::1]"', 'for=192.0.2.43;host="a.example"'])
def test_peer_bug_09_an_open_quote_does_not_hide_what_the_proxy_wrote(forged: str, written: str) -> None:
    resolver = client_address(trusted_proxies=["10.0.0.0/8"], forwarded="Forwarded")
    with pytest.raises(InvalidInput, match="address is unknown"):
        resolver(Request({"forwarded": f"{forged}, {written}"}, peer="10.0.0.1"))


def test_a_unix_socket_has_no_address() -> None:
    forwarded = Request({"x-forwarded-for": "203.0.113.1"}, peer=None)
    with pytest.raises(InvalidInput):
        client_address()(forwarded)
    assert client_address(trusted_proxies=["unix"])(forwarded) == "203.0.113.1"
    with pytest.raises(InvalidInput):
        client_address(trusted_proxies=["unix"])(Request(peer=None))
    with pytest.raises(InvalidInput):
        client_address(trusted_proxies=["unix"])(Request({"x-forwarded-for": "1.2.3.4"}, peer="testclient"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trusted_proxies": ["10.0.0.0/99"]}, "trusted_proxies"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies"),
        ({"trusted_proxies": "10.0.0.0/8"}, "trusted_proxies"),
        ({"forwarded": "X-Real-IP"}, "forwarded"),
        ({"ipv4_prefix": 0}, "ipv4_prefix"),
        ({"ipv4_prefix": 33}, "ipv4_prefix"),
        ({"ipv4_prefix": "24"}, "ipv4_prefix"),
        ({"ipv6_prefix": 0}, "ipv6_prefix"),
        ({"ipv6_prefix": 129}, "ipv6_prefix"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        client_address(**options)
