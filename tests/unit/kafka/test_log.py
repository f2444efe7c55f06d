"""Kafka's log: when a failure means that the cluster does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from paceline.durations import EPOCH
from paceline.errors import BrokerUnavailable, PacelineError
from paceline.kafka.log import KafkaLog
from paceline.messaging import Record
from paceline.testing import FakeClock


class Producer:
    """Stands where librdkafka's producer does: the partition of key `a` has no leader, which takes a while to show."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
        if any(record.key == "a" for record in records):
            await self.waiting.wait()
        return [BrokerUnavailable() if record.key == "a" else None for record in records]


async def test_a_partition_without_a_leader_does_not_pause_the_others() -> None:
    clock, producer = FakeClock(EPOCH), Producer()
    log = KafkaLog("127.0.0.1:1", topics=[], clock=clock)
    await log.close()
    log._producer = producer  # type: ignore[assignment]

    async def publish(keys: str) -> list[str]:
        return [str(outcome or "") for outcome in await log.publish([Record("t", key, "v") for key in keys])]

    late = [asyncio.create_task(publish("a")) for _ in range(10)]
    await asyncio.sleep(0)
    clock.advance(1)
    assert await publish("b") == [""]
    producer.waiting.set()
    await asyncio.gather(*late)
    assert await publish("bc") == ["", ""]
    for _ in range(5):
        clock.advance(1)
        assert await publish("ab") == [str(BrokerUnavailable()), ""]
    # Where nothing arrives, Kafka does not answer, and callers are spared the wait.
    clock.advance(1)
    for _ in range(3):
        await publish("a")
    assert await publish("b") == ["Kafka did not answer a moment ago"]
