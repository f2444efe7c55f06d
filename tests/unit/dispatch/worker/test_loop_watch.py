"""The watch of the event loop: what it says, and the heartbeats that it sends meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest

from paceline.dispatch.model import Claim
from paceline.dispatch.worker import loop_watch
from paceline.dispatch.worker.loop_watch import LoopWatch
from paceline.testing import eventually

CLAIM = Claim("WORK", "a", 1, 0)


class Heartbeats:
    def __init__(self) -> None:
        self.touched: list[Sequence[Claim]] = []
        self.twice = threading.Event()
        self.closed = 0

    async def touch(self, claims: Sequence[Claim]) -> list[bool]:
        self.touched.append(claims)
        if len(self.touched) > 1:
            self.twice.set()
        return [True]

    async def close(self) -> None:
        self.closed += 1


async def test_a_blocked_loop_is_named_and_its_claims_stay_alive(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.1)
    heartbeats, reported = Heartbeats(), list[tuple[str, float]]()
    watch = LoopWatch(
        asyncio.get_running_loop(),
        lambda: heartbeats,
        lambda: [CLAIM],
        lambda: 0.05,
        lambda *blocked: reported.append(blocked),
    )

    async def block() -> None:
        assert heartbeats.twice.wait(30)

    with caplog.at_level(logging.ERROR, "paceline.dispatch"), watch.watching():
        await asyncio.create_task(block(), name="exec-WORK-a")
        await eventually(lambda: reported)
    assert heartbeats.touched[:2] == [[CLAIM], [CLAIM]]
    assert heartbeats.closed == 1
    assert reported[0][0] == "exec-WORK-a"
    assert any("blocked" in line and "by task exec-WORK-a" in line for line in caplog.messages)
