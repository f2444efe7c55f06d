"""Attempt events never hold up a send; what does not fit is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from paceline.errors import BrokerUnavailable, StoreUnavailable
from paceline.messaging import Record
from paceline.testing import eventually
from paceline_sms.attempts import AttemptLog, AttemptReader
from paceline_sms.model import AttemptEvent, Outcome
from paceline_sms.ports import AnalyticsStore, NullObserver
from tests.unit.apps.sms.fakes import MemoryLog, MemorySource


class Dropped(NullObserver):
    def __init__(self) -> None:
        self.count = 0

    def events_dropped(self, count: int) -> None:
        self.count += count


async def test_events_are_published_in_the_background() -> None:
    log = MemoryLog()
    attempts = AttemptLog(log, topic="events", observer=NullObserver())
    for number in range(1_200):
        attempts.record(number % 3, Outcome.SENT, number)
    assert log.records == []
    await attempts.close()
    events = [AttemptEvent.from_record_value(record.value) for record in log.records]
    assert [event.at_ms for event in events] == list(range(1_200))
    assert len({event.event_id for event in events}) == 1_200
    assert {record.topic for record in log.records} == {"events"}


async def test_a_full_queue_drops_and_counts() -> None:
    log, dropped = MemoryLog(), Dropped()
    log.down = BrokerUnavailable()
    attempts = AttemptLog(log, topic="events", observer=dropped, capacity=10)
    for _ in range(25):
        attempts.record(1, Outcome.FAILED, 0)
    assert dropped.count == 15
    log.down = None
    await eventually(lambda: len(log.records) == 10)
    await attempts.close()


async def test_what_the_broker_refused_is_published_later() -> None:
    log = MemoryLog()
    log.down = BrokerUnavailable()
    attempts = AttemptLog(log, topic="events", observer=NullObserver())
    attempts.record(1, Outcome.RATE_LIMITED, 5)
    await asyncio.sleep(0)
    log.down = None
    await eventually(lambda: len(log.records) == 1)
    await attempts.close()


class FailingAnalytics:
    """An `AnalyticsStore` that can't be reached at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.events: list[AttemptEvent] = []

    async def add(self, events: Sequence[AttemptEvent]) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable
        self.events += events


async def test_events_that_could_not_be_counted_are_counted_when_the_store_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log delivers each record once, so a reader that failed must keep it."""
    monkeypatch.setattr("paceline.messaging.FIRST_PAUSE", 0.001)
    event = AttemptEvent("e1", 7, Outcome.SENT, 5)
    source = MemorySource([Record("events", "7", event.to_record_value())])
    store, stop = FailingAnalytics(failures=2), asyncio.Event()

    async def join() -> MemorySource:
        return source

    reading = asyncio.create_task(AttemptReader(join, cast(AnalyticsStore, store)).run(stop))
    await asyncio.wait_for(source.drained.wait(), 10)
    stop.set()
    await reading
    assert store.events == [event]
