"""`paceline queue` shows whatever can be queued."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue
from tests.unit.server.cli.command import Paceline, paceline

__all__ = ["paceline"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_item_with_a_deep_context_is_shown(paceline: Paceline, form: list[str]) -> None:
    context: Any = "inside"
    for _ in range(900):
        context = {"a": context}

    async def enqueue() -> None:
        async with open_queue(Settings.load()) as queue:
            await queue.configure("DEEP")
            await queue.enqueue("DEEP", "d1", context=context)

    asyncio.run(enqueue())
    assert "inside" in paceline("queue", "show", "DEEP", "d1", *form)
