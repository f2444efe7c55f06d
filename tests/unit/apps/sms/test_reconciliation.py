"""What waits for the log's readers is not lost; what they never saw is queued again, once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

import pytest

from paceline_sms.ports import NullObserver
from paceline_sms.reconciliation import Sweep


class Rows:
    """Messages that no topic of the outbox has. Those of `touched` have an item meanwhile."""

    def __init__(self, *message_ids: str) -> None:
        self.ids = list(message_ids)
        self.touched: set[str] = set()

    async def suspects(self, age: timedelta, limit: int) -> list[str]:
        return list(self.ids)

    async def requeue(self, message_ids: Sequence[str]) -> list[str]:
        lost = [message_id for message_id in message_ids if message_id not in self.touched]
        self.ids = [message_id for message_id in self.ids if message_id not in lost]
        return lost


class Topic:
    def __init__(self, end: int, committed: int) -> None:
        self.end, self.committed = end, committed

    async def ends(self) -> dict[int, int]:
        return {0: self.end, 1: 0}

    async def processed(self) -> dict[int, int]:
        return {0: self.committed}


class Counted(NullObserver):
    total = 0

    def lost(self, messages: int) -> None:
        self.total += messages


async def test_without_a_broker_what_is_in_no_topic_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    observer = Counted()
    sweep = Sweep(Rows("a"), observer)
    assert [await sweep.sweep(), await sweep.sweep(), observer.total] == [1, 0, 1]
    (entry,) = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert entry.message_id == "a"  # type: ignore[attr-defined]


async def test_what_may_be_in_the_topic_is_not_lost_until_its_readers_have_passed_its_end() -> None:
    rows, topic, observer = Rows("waits", "lost"), Topic(7, 5), Counted()
    sweep = Sweep(rows, observer, topic)
    assert await sweep.sweep() == 0
    topic.end = 20  # later records do not matter
    assert await sweep.sweep() == 0
    topic.committed = 7
    rows.touched = {"waits"}
    assert [await sweep.sweep(), observer.total] == [1, 1]
    assert rows.ids == ["waits"]
