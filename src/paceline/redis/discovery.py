"""Discovery of the server that has the data, as a generator of queries that either client can run.

A discovery is sent the reply to each query, or thrown the `StoreUnavailable` that came instead, and returns its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from paceline.errors import StoreUnavailable
from paceline.redis.protocol import CLUSTER_SLOTS, ROLE, find_master
from paceline.redis.redirects import SlotMap
from paceline.redis.url import Address, Login, RedisUrl

Result = TypeVar("Result", covariant=True)


class Query(NamedTuple):
    """A command for one server. If it is not the `last` candidate, it may take half of the time left, so that a silent
    server never takes all of it."""

    address: Address
    login: Login
    command: bytes
    last: bool

    def due(self, now: float, end: float) -> float:
        """When the query times out, in a discovery that must end at `end`."""
        return end if self.last else now + (end - now) / 2


Discovery: TypeAlias = Generator[Query, Any, Result]


class Candidates:
    """The servers to query, in order. One that failed is last next time."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = tuple(seeds)
        self._order = self._seeds

    def put_last(self, candidate: Address) -> None:
        # The order is replaced, never changed: threads may do this at once.
        order = self._order
        if candidate in order:
            self._order = (*(other for other in order if other != candidate), candidate)

    def update(self, masters: Sequence[Address]) -> None:
        """Adds the masters of a cluster, new ones first, and drops those that are no longer masters."""
        order = self._order
        new = [candidate for candidate in masters if candidate not in order]
        self._order = (*new, *(candidate for candidate in order if candidate in masters or candidate in self._seeds))

    def in_order(self) -> Iterator[tuple[Address, bool]]:
        """Each candidate, and whether it is the last."""
        order = self._order
        for number, candidate in enumerate(order, 1):
            yield candidate, number == len(order)


def master(url: RedisUrl, sentinels: Candidates) -> Discovery[Address]:
    """The master that a sentinel names, confirmed by its own ROLE."""
    failure: Exception | None = None
    queried: set[Address] = set()
    for sentinel, last in sentinels.in_order():
        try:
            reply = yield Query(sentinel, url.sentinel_login, find_master(url.service), last)
            if reply is None:
                raise StoreUnavailable(f"sentinel {sentinel} knows no service {url.service!r}")
            named = Address(reply[0].decode(), int(reply[1]))
            if named in queried:
                continue
            queried.add(named)
            role = yield Query(named, url.login, ROLE, last)
            if role[0] == b"master":
                return named
            raise StoreUnavailable(f"{named} is not master yet")
        except StoreUnavailable as error:
            failure = error
            sentinels.put_last(sentinel)
    raise StoreUnavailable(f"no sentinel names a master of {url.service!r}") from failure


def slot_map(url: RedisUrl, nodes: Candidates) -> Discovery[SlotMap]:
    """The slot map, from any node."""
    failure: Exception | None = None
    for node, last in nodes.in_order():
        try:
            reply = yield Query(node, url.login, CLUSTER_SLOTS, last)
            slots = SlotMap(reply, node)
            nodes.update(slots.masters)
            return slots
        except StoreUnavailable as error:
            failure = error
            nodes.put_last(node)
    raise StoreUnavailable("no node of the Redis cluster answers") from failure
