"""The message log port: carries records from whoever publishes them to a group of readers, at least once, in order per
key. Kafka implements it, and so does an outbox in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headgate.errors import HeadgateError


class Record(NamedTuple):
    """Something to be published. Records of one key stay in order."""

    topic: str
    key: str
    value: str
    traceparent: str | None = None
    """The trace it was published in, for whoever reads it; carried beside the value."""


class Delivered(NamedTuple):
    """A record handed to a reader."""

    record: Record
    partition: int
    position: int
    """Unique within the partition, growing."""


class MessageLog(Protocol):
    """Carries records. Promises, checked by `tests/contracts/message_log.py`: what was acknowledged is delivered, at
    least once, also after a crash of either side; records of one key arrive in the order of their acknowledgement."""

    async def publish(self, records: Sequence[Record]) -> Sequence[HeadgateError | None]:
        """Publishes all; one outcome each, in order: None once it is durable, else why it may not be
        (`BrokerUnavailable` when the broker does not answer)."""
        ...

    async def read(self, topic: str, group: str) -> MessageSource:
        """Joins the readers of a topic. A topic has one group of readers; a group may have many members."""
        ...

    async def ping(self) -> None:
        """Raises `StoreUnavailable` if it does not answer."""
        ...

    async def close(self) -> None:
        """Returns when everything accepted is settled."""
        ...


class MessageSource(Protocol):
    """One member of a group of readers."""

    async def receive(self, most: int, wait: float) -> list[Delivered]:
        """Up to `most` records nobody in the group has been given and not lost since; waits up to `wait` seconds for
        the first of them. `StoreUnavailable` if the log does not answer.

        Each call keeps the membership alive, also with `most` = 0: so a member that is busy goes on calling."""
        ...

    def holds(self, delivered: Delivered) -> bool:
        """Whether the record is still this member's: False once another member may be given it."""
        ...

    async def commit(self, done: Sequence[Delivered]) -> None:
        """These need not come again. What is received and never committed comes again, to a later member."""
        ...

    async def close(self) -> None:
        """Leaves the group; others take over at once."""
        ...
