"""Finding the server that has the data: questions to be asked one after another, whoever asks them.

A search is a generator of questions. It is sent each answer, or thrown the `StoreUnavailable` that came instead, and
returns what it found.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headgate.errors import StoreUnavailable
from headgate.redis.protocol import CLUSTER_SLOTS, ROLE, find_master
from headgate.redis.redirects import SlotMap
from headgate.redis.url import Address, Login, RedisUrl

Found = TypeVar("Found", covariant=True)


class Question(NamedTuple):
    """A command for one server. If it is not the `last` that can be asked, it may take half of the time left, so that
    a silent server never takes all of it."""

    address: Address
    login: Login
    command: bytes
    last: bool

    def due(self, now: float, end: float) -> float:
        """When to give up, in a search that must end at `end`."""
        return end if self.last else now + (end - now) / 2


Search: TypeAlias = Generator[Question, Any, Found]


class Places:
    """The servers to ask where the data is: those that gave no good answer come last next time."""

    def __init__(self, named: Sequence[Address]) -> None:
        self._named = tuple(named)
        self._order = self._named

    def put_last(self, place: Address) -> None:
        # The order is replaced, never changed: threads may do this at once.
        order = self._order
        if place in order:
            self._order = (*(other for other in order if other != place), place)

    def learn(self, masters: Sequence[Address]) -> None:
        """Takes in the masters of a cluster, new ones first, and drops those that are masters no more."""
        order = self._order
        new = [place for place in masters if place not in order]
        self._order = (*new, *(place for place in order if place in masters or place in self._named))

    def turns(self) -> Iterator[tuple[Address, bool]]:
        """Each place, and whether it is the last."""
        order = self._order
        for number, place in enumerate(order, 1):
            yield place, number == len(order)


def master(url: RedisUrl, sentinels: Places) -> Search[Address]:
    """The master that a sentinel names and that says so itself."""
    trouble: Exception | None = None
    asked: set[Address] = set()
    for sentinel, last in sentinels.turns():
        try:
            answer = yield Question(sentinel, url.sentinel_login, find_master(url.service), last)
            if answer is None:
                raise StoreUnavailable(f"sentinel {sentinel} knows no service {url.service!r}")
            named = Address(answer[0].decode(), int(answer[1]))
            if named in asked:
                continue
            asked.add(named)
            role = yield Question(named, url.login, ROLE, last)
            if role[0] == b"master":
                return named
            raise StoreUnavailable(f"{named} is not master yet")
        except StoreUnavailable as error:
            trouble = error
            sentinels.put_last(sentinel)
    raise StoreUnavailable(f"no sentinel names a master of {url.service!r}") from trouble


def slot_map(url: RedisUrl, nodes: Places) -> Search[SlotMap]:
    """Who owns which slot, from any node."""
    trouble: Exception | None = None
    for node, last in nodes.turns():
        try:
            reply = yield Question(node, url.login, CLUSTER_SLOTS, last)
            slots = SlotMap(reply, node)
            nodes.learn(slots.masters)
            return slots
        except StoreUnavailable as error:
            trouble = error
            nodes.put_last(node)
    raise StoreUnavailable("no node of the Redis cluster answers") from trouble
