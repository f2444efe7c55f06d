"""Finding the server that has the data: questions to be asked one after another, whoever asks them.

A search is a generator of questions. It is sent each answer, or thrown the `StoreUnavailable` that came instead, and
returns what it found.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headgate.adapters.redis.calls import CLUSTER_SLOTS, ROLE, find_master
from headgate.adapters.redis.remedies import SlotMap
from headgate.adapters.redis.url import Address, Login, RedisUrl
from headgate.errors import StoreUnavailable

Found = TypeVar("Found", covariant=True)


class Question(NamedTuple):
    """A command for one server."""

    address: Address
    login: Login
    command: bytes


Search: TypeAlias = Generator[Question, Any, Found]


def master(url: RedisUrl) -> Search[Address]:
    """The master that a sentinel names and that says so itself."""
    trouble: Exception | None = None
    for sentinel in url.addresses:
        try:
            answer = yield Question(sentinel, url.sentinel_login, find_master(url.service))
            if answer is None:
                raise StoreUnavailable(f"sentinel {sentinel} knows no service {url.service!r}")
            named = Address(answer[0].decode(), int(answer[1]))
            role = yield Question(named, url.login, ROLE)
            if role[0] == b"master":
                return named
            raise StoreUnavailable(f"{named} is not master yet")
        except StoreUnavailable as error:
            trouble = error
    raise StoreUnavailable(f"no sentinel names a master of {url.service!r}") from trouble


def slot_map(url: RedisUrl, nodes: Sequence[Address]) -> Search[SlotMap]:
    """Who owns which slot, from any of `nodes`, or else of those the URL names."""
    trouble: Exception | None = None
    for node in dict.fromkeys((*nodes, *url.addresses)):
        try:
            reply = yield Question(node, url.login, CLUSTER_SLOTS)
            return SlotMap(reply, node)
        except StoreUnavailable as error:
            trouble = error
    raise StoreUnavailable("no node of the Redis cluster answers") from trouble
