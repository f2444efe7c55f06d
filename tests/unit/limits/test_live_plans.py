"""Plans changed while a limiter decides by them: in force when the call returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from paceline import AsyncLimiter, FixedWindow, Plan
from paceline.errors import NotFound, StoreUnavailable
from paceline.limits.live_plans import LivePlans
from paceline.testing import eventually


class Editor:
    """A registry that is also edited, and can be down."""

    refresh_every: float | None = None

    def __init__(self, *plans: Plan) -> None:
        self.plans = {plan.name: plan for plan in plans}
        self.loads = 0
        self.down = False

    async def load(self) -> Mapping[str, Plan]:
        self.loads += 1
        if self.down:
            raise StoreUnavailable("down")
        return dict(self.plans)

    async def all(self) -> Mapping[str, Plan]:
        return dict(self.plans)

    async def put(self, plan: Plan) -> None:
        self.plans[plan.name] = plan

    async def delete(self, name: str) -> None:
        del self.plans[name]


def gold(limit: int) -> Plan:
    return Plan("gold", FixedWindow(limit, "PT1M"))


async def test_a_change_is_in_force_when_the_call_returns() -> None:
    editor = Editor(gold(1))
    async with AsyncLimiter(plans=editor) as limiter:
        live = LivePlans(limiter, editor)
        assert (await limiter.acquire("u", "gold")).limit == 1
        await live.put(gold(5))
        assert (await limiter.acquire("u", "gold")).limit == 5
        assert await live.find("gold") == gold(5)
        assert dict(await live.all()) == {"gold": gold(5)}
        assert await live.delete("gold") == gold(5)
        with pytest.raises(NotFound):
            await limiter.acquire("u", "gold")


async def test_a_plan_that_is_not_there_is_neither_found_nor_deleted() -> None:
    editor = Editor(gold(1))
    async with AsyncLimiter(plans=editor) as limiter:
        live = LivePlans(limiter, editor)
        for call in (live.find, live.delete):
            with pytest.raises(NotFound, match="silver"):
                await call("silver")
        assert list(editor.plans) == ["gold"]


async def test_plans_are_loaded_again_and_again_and_a_failure_keeps_those_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    editor = Editor(gold(1))
    waits: list[float] = []
    turns: asyncio.Queue[None] = asyncio.Queue()

    async def changed(seconds: float) -> None:
        waits.append(seconds)
        await turns.get()

    async with AsyncLimiter(plans=editor) as limiter:
        assert (await limiter.acquire("u", "gold")).limit == 1
        staying = asyncio.create_task(LivePlans(limiter, editor).stay_fresh(7.0, changed))
        await editor.put(gold(2))
        turns.put_nowait(None)
        await eventually(lambda: len(waits) == 2)
        assert (await limiter.acquire("u", "gold")).limit == 2
        editor.down = True
        with caplog.at_level(logging.WARNING, "paceline.limits"):
            turns.put_nowait(None)
            await eventually(lambda: len(waits) == 3)
        assert "those in force stay" in caplog.text
        assert (await limiter.acquire("u", "gold")).limit == 2
        editor.down = False
        await editor.put(gold(3))
        turns.put_nowait(None)
        await eventually(lambda: len(waits) == 4)
        assert (await limiter.acquire("u", "gold")).limit == 3
        assert set(waits) == {7.0}
        staying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await staying
