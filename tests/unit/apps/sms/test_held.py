"""What is held too long becomes a dead letter, unless its outcome is known by then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from paceline.messaging import Record
from paceline_sms.held import HeldMessages
from paceline_sms.ports import DeadLetter, NullObserver
from tests.unit.apps.sms.fakes import MemorySource
from tests.unit.apps.sms.test_delivery import record


class Held:
    """Messages that are still unknown."""

    def __init__(self, *message_ids: str) -> None:
        self.unknown = message_ids
        self.letters: list[DeadLetter] = []

    async def bury_held(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        buried = [letter for letter in letters if letter.message_id in self.unknown]
        self.letters += buried
        return buried


async def test_only_what_is_still_unknown_is_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    source, store, stop = MemorySource([record(1, "a"), record(2, "b")]), Held("b"), asyncio.Event()

    async def join() -> MemorySource:
        return source

    running = asyncio.create_task(HeldMessages(join, store, NullObserver()).run(stop))
    await asyncio.wait_for(source.drained.wait(), 10)
    stop.set()
    await asyncio.wait_for(running, 10)
    (letter,) = store.letters
    assert (letter.message_id, letter.key) == ("b", "2")
    assert Record("t", letter.key, letter.value) == record(2, "b")
    assert [entry.message_id for entry in caplog.records] == ["b"]  # type: ignore[attr-defined]
