"""The relay: records of a key in order, keys beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from paceline.errors import BrokerUnavailable, PacelineError
from paceline.messaging import Record
from paceline.testing import eventually
from paceline_sms.relay import Relay
from tests.unit.apps.sms.fakes import MemoryLog, MemorySource


class Partitioned(MemoryLog):
    """Refuses records of some keys, as Kafka does while their partition has no leader: only after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.leaderless: set[str] = set()

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
        outcomes: list[PacelineError | None] = []
        for record in records:
            if record.key in self.leaderless:
                await asyncio.sleep(0.001)
                outcomes.append(BrokerUnavailable())
            else:
                outcomes += await super().publish([record])
        return outcomes


async def carry(source: MemorySource, log: MemoryLog) -> tuple[asyncio.Task[None], asyncio.Event]:
    async def join() -> MemorySource:
        return source

    stop = asyncio.Event()
    return asyncio.create_task(Relay(join, log, "t", first_pause=0.001).run(stop)), stop


def records(*keys: str) -> list[Record]:
    return [Record("outbox", key, str(number)) for number, key in enumerate(keys)]


async def test_a_partition_without_a_leader_holds_up_its_own_keys_only() -> None:
    log = Partitioned()
    log.leaderless = {"a"}
    # More than a batch, with a record of the lost partition in each.
    source = MemorySource(records(*(["a", "b", "c"] * 500)))
    running, stop = await carry(source, log)
    await eventually(lambda: len(log.records) == 1000, within=10)
    assert {record.topic for record in log.records} == {"t"}
    assert {record.key for record in log.records} == {"b", "c"}
    await eventually(lambda: len(source.committed) == 1000, within=10)
    log.leaderless = set()
    await asyncio.wait_for(source.drained.wait(), 10)
    stop.set()
    await asyncio.wait_for(running, 10)
    for key in "abc":
        own = [int(record.value) for record in log.records if record.key == key]
        assert own == sorted(own)
        assert len(own) == 500
    assert source.closed


async def test_what_another_member_has_now_is_left_to_it() -> None:
    log = Partitioned()
    log.leaderless = {"a"}
    source = MemorySource(records("a", "b"))
    running, stop = await carry(source, log)
    await eventually(lambda: len(source.committed) == 1, within=10)
    source.lost = {0}
    log.leaderless = set()
    stop.set()
    await asyncio.wait_for(running, 10)
    assert [record.key for record in log.records] == ["b"]


async def test_a_relay_that_stops_leaves_what_could_not_be_carried() -> None:
    log = Partitioned()
    log.leaderless = {"a"}
    source = MemorySource(records("a", "b", "a"))
    running, stop = await carry(source, log)
    await eventually(lambda: log.records, within=10)
    stop.set()
    await asyncio.wait_for(running, 10)
    assert [received.record.key for received in source.committed] == ["b"]
    assert source.closed
