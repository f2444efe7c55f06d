"""Partitions that librdkafka has ceased to read.

When a partition's leader hangs and another one takes over, its consumer now and then waits for an answer that will not
come, and nothing is read of the partition until the consumer is replaced, though it is a member in good standing.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException

STALL_SECONDS = 15.0
"""How long a partition may be quiet until its end is asked for; what lies before that end then has as long to come."""
MAX_STALL_SECONDS = 600.0
ANSWER_SECONDS = 1.0


class StallWatch:
    """Compares how far each partition was read with its end, where nothing has come for a while."""

    def __init__(self) -> None:
        self._seconds = STALL_SECONDS
        self._due = time.monotonic() + self._seconds
        self._is_dry = False
        """Whether, since the last look, there was nothing that was fetched and not taken."""
        self._read_to: dict[int, int] = {}
        self._heard_of: set[int] = set()
        """Partitions of which something has come since the last look."""
        self._behind: dict[int, int] = {}
        """How far those were read that were behind at the last look."""
        self._found: tuple[int, int] | None = None
        """The partition of the last stall, and how far it was read."""

    def heard(self, partition: int, read_to: int) -> None:
        """A record has come, or the news that there is none up to this offset."""
        self._read_to[partition] = read_to
        self._heard_of.add(partition)

    def forget(self, partitions: list[int]) -> None:
        """They are somebody else's now."""
        for partition in partitions:
            self._read_to.pop(partition, None)
            self._behind.pop(partition, None)

    def ran_dry(self) -> None:
        """All that was fetched is taken: what of a partition is still missing does not wait behind that of others."""
        self._is_dry = True

    def is_due(self) -> bool:
        return self._is_dry and time.monotonic() >= self._due

    def put_off(self) -> None:
        """Nothing is read on purpose."""
        self._behind.clear()
        self._due = time.monotonic() + self._seconds

    def stalled(self, consumer: Consumer) -> int | None:
        """A partition that is no further than at the last look, and was behind then.

        Until that one moves, each look comes after twice the time: whoever reads only what transactions have committed
        may be behind the end for as long as one is open.
        """
        behind = self._looked_at(consumer)
        self._heard_of.clear()
        self._is_dry = False
        stalled = next((at for at in behind.items() if self._behind.get(at[0]) == at[1]), None)
        self._behind = behind
        if self._found is not None and self._read_to.get(*self._found) != self._found[1]:
            self._found, self._seconds = None, STALL_SECONDS
        if stalled is not None:
            self._found, self._seconds = stalled, min(2 * self._seconds, MAX_STALL_SECONDS)
        self._due = time.monotonic() + self._seconds
        return stalled and stalled[0]

    def _looked_at(self, consumer: Consumer) -> dict[int, int]:
        """How far those of the quiet partitions were read that have more, or whose leader alone does not answer."""
        behind: dict[int, int] = {}
        answers = len(self._heard_of)
        for partition in consumer.assignment():
            number = partition.partition
            if number in self._heard_of:
                continue
            try:
                begin, end = consumer.get_watermark_offsets(partition, ANSWER_SECONDS)
                if number not in self._read_to:
                    (committed,) = consumer.committed([partition], ANSWER_SECONDS)
                    self._read_to[number] = max(begin, committed.offset)
            except KafkaException:
                if answers:
                    behind[number] = self._read_to.get(number, -1)
                break  # to wait for each of its partitions would hold up those that are read
            answers += 1
            if self._read_to[number] < end:
                behind[number] = self._read_to[number]
        return behind
