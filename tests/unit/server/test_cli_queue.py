"""`headgate queue` shows whatever can be queued."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.server.settings import Settings
from headgate.server.wiring.queue import open_queue
from tests.unit.server.command import Headgate, headgate

__all__ = ["headgate"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_item_with_a_deep_context_is_shown(headgate: Headgate, form: list[str]) -> None:
    context: Any = "inside"
    for _ in range(900):
        context = {"a": context}

    async def enqueue() -> None:
        async with open_queue(Settings.load()) as queue:
            await queue.configure("DEEP")
            await queue.enqueue("DEEP", "d1", context=context)

    asyncio.run(enqueue())
    assert "inside" in headgate("queue", "show", "DEEP", "d1", *form)
