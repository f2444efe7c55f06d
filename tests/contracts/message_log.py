"""The contract of every `MessageLog`."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest

from paceline.messaging import LogEntry, MessageLog, MessageSource, Record

WITHIN = 30.0

Opener = Callable[[], Awaitable[MessageLog]]


async def publish(log: MessageLog, *records: Record) -> None:
    assert list(await log.publish(records)) == [None] * len(records)


async def take(source: MessageSource, count: int) -> list[LogEntry]:
    """Exactly so many records, in the order they came."""
    records: list[LogEntry] = []
    deadline = asyncio.get_running_loop().time() + WITHIN
    while len(records) < count and asyncio.get_running_loop().time() < deadline:
        records += await source.receive(count - len(records), 1.0)
    assert len(records) == count, f"{len(records)} of {count} records came within {WITHIN} s"
    return records


def values(entries: list[LogEntry]) -> list[str]:
    return [entry.record.value for entry in entries]


class MessageLogContract:
    """Inherit and provide the fixture `log`."""

    commits_one_by_one = True
    """False: a partition is committed up to a place, so what is done after a gap comes again with the gap."""

    @pytest.fixture
    def topic(self) -> str:
        return f"contract-{uuid.uuid4().hex[:12]}"

    async def test_a_reader_that_was_interrupted_does_not_wait(self, log: MessageLog, topic: str) -> None:
        source = await log.read(topic, "readers")
        source.interrupt()
        assert await asyncio.wait_for(source.receive(10, 3600), 30) == []
        await source.close()

    async def test_what_is_acknowledged_is_delivered_whole(self, log: MessageLog, topic: str) -> None:
        odd = ['{"a": "\\u0000"}', "x" * 20_000, "naïve – ✓"]
        await publish(log, *(Record(topic, "7", value) for value in odd))
        source = await log.read(topic, f"{topic}-readers")
        entries = await take(source, 3)
        assert [entry.record for entry in entries] == [Record(topic, "7", value) for value in odd]
        await source.close()

    async def test_a_record_brings_its_trace_along(self, log: MessageLog, topic: str) -> None:
        traced = Record(topic, "7", "hello", f"00-{'4b' * 16}-{'0f' * 8}-01")
        await publish(log, traced, traced._replace(traceparent=None))
        source = await log.read(topic, f"{topic}-readers")
        assert [entry.record for entry in await take(source, 2)] == [traced, traced._replace(traceparent=None)]
        await source.close()

    async def test_records_of_a_key_keep_their_order(self, log: MessageLog, topic: str) -> None:
        for number in range(20):
            await publish(log, *(Record(topic, key, f"{key}-{number}") for key in "abcde"))
        source = await log.read(topic, f"{topic}-readers")
        by_key: dict[str, list[str]] = defaultdict(list)
        for entry in await take(source, 100):
            by_key[entry.record.key].append(entry.record.value)
        assert by_key == {key: [f"{key}-{number}" for number in range(20)] for key in "abcde"}
        await source.close()

    async def test_positions_of_a_partition_grow(self, log: MessageLog, topic: str) -> None:
        await publish(log, *(Record(topic, str(number), "v") for number in range(30)))
        source = await log.read(topic, f"{topic}-readers")
        by_partition: dict[int, list[int]] = defaultdict(list)
        for entry in await take(source, 30):
            by_partition[entry.partition].append(entry.position)
        for positions in by_partition.values():
            assert positions == sorted(set(positions))
        await source.close()

    async def test_a_member_is_not_given_the_same_record_twice(self, log: MessageLog, topic: str) -> None:
        await publish(log, *(Record(topic, "k", str(number)) for number in range(10)))
        source = await log.read(topic, f"{topic}-readers")
        first, rest = await take(source, 4), await take(source, 6)
        assert values(first) + values(rest) == [str(number) for number in range(10)]
        await source.close()

    async def test_what_was_not_committed_comes_again_to_the_next_member(self, log: MessageLog, topic: str) -> None:
        await publish(log, *(Record(topic, "k", str(number)) for number in range(6)))
        source = await log.read(topic, f"{topic}-readers")
        entries = await take(source, 6)
        await source.commit([entries[1], entries[0]])
        await source.commit([entries[4]])
        await source.close()
        another = await log.read(topic, f"{topic}-readers")
        expected = ["2", "3", "5"] if self.commits_one_by_one else ["2", "3", "4", "5"]
        assert values(await take(another, len(expected))) == expected
        await another.close()

    async def test_what_was_committed_does_not_come_again(self, log: MessageLog, topic: str) -> None:
        await publish(log, Record(topic, "k", "old"))
        source = await log.read(topic, f"{topic}-readers")
        await source.commit(await take(source, 1))
        await source.close()
        await publish(log, Record(topic, "k", "new"))
        another = await log.read(topic, f"{topic}-readers")
        assert values(await take(another, 1)) == ["new"]
        await another.close()

    async def test_topics_do_not_mix(self, log: MessageLog, topic: str) -> None:
        await publish(log, Record(f"{topic}-a", "k", "a"), Record(f"{topic}-b", "k", "b"))
        for name in "ab":
            source = await log.read(f"{topic}-{name}", f"{topic}-{name}-readers")
            assert values(await take(source, 1)) == [name]
            assert await source.receive(1, 0.0) == []
            await source.close()

    async def test_members_share_a_topic_and_lose_nothing_when_one_leaves(self, log: MessageLog, topic: str) -> None:
        expected = {str(number) for number in range(60)}
        members = [await log.read(topic, f"{topic}-readers") for _ in range(2)]
        seen: list[str] = []
        stop = asyncio.Event()

        async def consume(source: MessageSource, leave_after: int) -> None:
            mine = 0
            while not stop.is_set() and mine < leave_after:
                entries = await source.receive(5, 0.2)
                mine += len(entries)
                seen.extend(values(entries))
                await source.commit(entries)
                if set(seen) >= expected:
                    stop.set()
            await source.close()

        await publish(log, *(Record(topic, str(number), str(number)) for number in range(60)))
        async with asyncio.timeout(WITHIN * 2):
            await asyncio.gather(consume(members[0], 10), consume(members[1], 1_000))
        assert set(seen) == expected

    async def test_it_answers_when_asked(self, log: MessageLog) -> None:
        await log.ping()
