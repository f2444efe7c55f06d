"""Client addresses behind proxies: what is parsed, which proxies are believed, and where a client is found."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigurationError
from paceline.limits.addresses import Address, block, hops, nearest_untrusted, networks, parse, trusted

addresses = st.ip_addresses()
PROXIES = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))


@given(addresses, st.integers(1, 65535), st.sampled_from(["", " ", "\t"]))
def test_an_address_is_read_in_every_form_that_proxies_write(address: Address, port: int, space: str) -> None:
    plain = parse(str(address))
    assert parse(f"{space}{address}{space}") == plain
    assert parse(f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}") == plain
    assert parse(f"[{address}]") == plain
    if address.version == 6 and address.ipv4_mapped is None:
        assert plain == parse(f"{address}%eth0") == address


@given(st.ip_addresses(v=4))
def test_one_host_has_one_address_on_any_socket(address: Address) -> None:
    assert parse(f"::ffff:{address}") == parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "[", "[]:80", "example.com", "::g"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse(text) is None


def test_networks_are_read_and_a_unix_socket_is_none_of_them() -> None:
    assert networks(["10.0.0.0/8", "unix", "2001:db8::/32"]) == (PROXIES, True)
    assert networks(["127.0.0.1"]) == ((ip_network("127.0.0.1/32"),), False)
    assert networks([]) == ((), False)
    for wrong in ("10.0.0.0/8", ["10.0.0.1/8"], ["proxy"]):
        with pytest.raises(ConfigurationError) as caught:
            networks(wrong)
        assert caught.value.field == "trusted_proxies"


@given(addresses)
def test_an_address_is_trusted_by_a_network_of_its_own_version(address: Address) -> None:
    everything = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert trusted(address, everything)
    assert not trusted(address, [network for network in everything if network.version != address.version])
    assert not trusted(address, [])


@given(st.lists(addresses, min_size=1, max_size=5), st.sampled_from(["for={}", 'For="{}"', "by=x;for={};proto=http"]))
def test_both_headers_list_the_same_hops(listed: list[Address], form: str) -> None:
    texts = [str(address) for address in listed]
    assert hops("x-forwarded-for", ", ".join(texts)) == texts
    assert hops("forwarded", ",".join(form.format(text) for text in texts)) == texts


def test_a_quote_hides_no_hop() -> None:
    assert hops("forwarded", 'for="1.1.1.1, for=2.2.2.2", for=3.3.3.3') == ["1.1.1.1, for=2.2.2.2", "3.3.3.3"]
    assert hops("forwarded", 'for="1.1.1.1;by=x";for=9.9.9.9') == ["1.1.1.1;by=x"]
    assert hops("forwarded", 'for="1.1.1.1, for=2.2.2.2') == [""], "an open quote would swallow what proxies append"
    assert hops("forwarded", "proto=http, for = 2.2.2.2 ") == ["", "2.2.2.2"]


@given(st.lists(st.sampled_from(["10.0.0.1", "10.2.0.1", "192.0.2.1", "198.51.100.7", "nobody"]), max_size=5))
def test_the_client_is_the_first_hop_that_no_trusted_proxy_is(listed: list[str]) -> None:
    """Going back from the peer; what lies behind an untrusted hop may be forged and is never looked at."""
    peer = ip_address("10.0.0.9")
    way = [str(peer), *reversed(listed)]
    untrusted = next((hop for hop in way if not hop.startswith("10.")), way[-1])
    expected = None if untrusted == "nobody" else ip_address(untrusted)
    assert nearest_untrusted(peer, listed, PROXIES) == expected
    stranger = ip_address("203.0.113.5")
    assert nearest_untrusted(stranger, listed, PROXIES) == stranger


def test_a_peer_without_an_address_is_believed() -> None:
    assert nearest_untrusted(None, ["192.0.2.1"], PROXIES) == ip_address("192.0.2.1")
    assert nearest_untrusted(None, [], PROXIES) is None


def test_an_ipv6_subscriber_has_one_key() -> None:
    assert block(ip_address("192.0.2.1"), ipv6_prefix=64) == "192.0.2.1"
    assert block(ip_address("2001:db8::1"), ipv6_prefix=128) == "2001:db8::1"
    for end in ("1", "ffff"):
        assert block(ip_address(f"2001:db8::{end}"), ipv6_prefix=64) == "2001:db8::/64"
    assert block(ip_address("2001:db8:0:1::1"), ipv6_prefix=64) != block(ip_address("2001:db8::1"), ipv6_prefix=64)
