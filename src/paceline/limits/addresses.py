"""The client address of a request behind proxies, where any client can forge a forwarding header.

A forwarding header is used only if a trusted proxy wrote it. Every function is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from paceline.errors import ConfigurationError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

UNIX = "unix"
"""Stands for a peer on a Unix domain socket, which has no address."""
UNNAMED_PROXY = "(proxy)"
"""Stands for the peer of a request whose server has replaced it by an address of `X-Forwarded-For`. uvicorn does that
for peers on the loopback interface, unless it is told not to, and whoever calls it may have written the header."""


def parse(text: str) -> Address | None:
    """An address as servers and proxies write it (`192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]:80`), or `None`.

    An IPv4 address mapped into IPv6 is that IPv4 address, so that one host has one key on any kind of socket.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def networks(names: Iterable[str]) -> tuple[tuple[Network, ...], bool]:
    """The networks of `trusted_proxies`, and whether peers on Unix sockets are among them."""
    if isinstance(names, str):
        raise ConfigurationError("trusted_proxies", f"give a list of networks, as in [{names!r}]")
    parsed: list[Network] = []
    unix = False
    for name in names:
        if name == UNIX:
            unix = True
            continue
        try:
            parsed.append(ip_network(name))
        except ValueError as error:
            raise ConfigurationError(
                "trusted_proxies", f"{name!r} is no network such as '10.0.0.0/8' or '2001:db8::/32': {error}"
            ) from None
    return tuple(parsed), unix


def trusted(address: Address, proxies: Sequence[Network]) -> bool:
    """Whether `address` lies in one of the networks."""
    return any(address.version == network.version and address in network for network in proxies)


def hops(field: str, value: str) -> list[str]:
    """The addresses a forwarding header lists, the farthest first, each as its proxy wrote it."""
    if field != "forwarded":
        return [hop.strip() for hop in value.split(",")]
    if value.count('"') % 2:
        # Proxies close their quotes. A client's unclosed quote would swallow what the proxies appended.
        return [""]
    addresses = []
    for element in _split(value, ","):
        pairs = (pair.partition("=") for pair in _split(element, ";"))
        addresses.append(
            next((text.strip().strip('"') for name, _, text in pairs if name.strip().lower() == "for"), "")
        )
    return addresses


def nearest_untrusted(peer: Address | None, listed: Sequence[str], proxies: Sequence[Network]) -> Address | None:
    """The client: going back from the peer, the first address that is no trusted proxy.

    If all are trusted, the farthest of them. `None` if a trusted proxy's entry can't be parsed: the proxy's own address
    would put all such clients on one key.
    """
    client = peer
    for hop in reversed(listed):
        if client is not None and not trusted(client, proxies):
            break
        client = parse(hop)
        if client is None:
            return None
    return client


def block(address: Address, ipv4_prefix: int = 32, ipv6_prefix: int = 64) -> str:
    """The key of an address: IPv4 whole, unless shortened; IPv6 by prefix, as one subscriber owns all of it."""
    if isinstance(address, IPv4Address):
        return str(address) if ipv4_prefix == 32 else str(IPv4Network((int(address), ipv4_prefix), strict=False))
    return str(address) if ipv6_prefix == 128 else str(IPv6Network((int(address), ipv6_prefix), strict=False))


def _split(text: str, separator: str) -> list[str]:
    """Splits at `separator` outside quotes."""
    parts, start, quoted = [], 0, False
    for index, sign in enumerate(text):
        if sign == '"':
            quoted = not quoted
        elif sign == separator and not quoted:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
