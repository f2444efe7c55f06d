"""The rate of an item type's settings, kept while it changes."""

from __future__ import annotations

import asyncio

import pytest

from paceline import AsyncLimiter
from paceline.dispatch import rate_guard
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.rate_guard import RateGuard
from paceline.testing import eventually


class Settings:
    def __init__(self, rate: str | None) -> None:
        self.rate = rate

    async def config(self, item_type: str) -> DispatchConfig:
        return DispatchConfig(item_type=item_type, rate=self.rate)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(rate_guard, "FRESH_SECONDS", 0.02)
    return Settings("1/day")


@pytest.mark.parametrize("rate", ["100/second", None])
async def test_a_raised_or_removed_rate_holds_for_calls_that_wait(settings: Settings, rate: str | None) -> None:
    guard = RateGuard(settings.config, lambda: AsyncLimiter("memory://", on_error="closed"))
    await guard.admit("task:MAIL", "MAIL")
    waiting = [asyncio.ensure_future(guard.admit("task:MAIL", "MAIL")) for _ in range(3)]
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert not done
    settings.rate = rate
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    await guard.close()


async def test_a_lowered_rate_holds_for_the_next_call(settings: Settings) -> None:
    settings.rate = "1000/second"
    guard = RateGuard(settings.config, lambda: AsyncLimiter("memory://", on_error="closed"))
    for _ in range(3):
        await guard.admit("task:MAIL", "MAIL")
    settings.rate = "1/day"

    async def held() -> bool:
        try:
            await asyncio.wait_for(guard.admit("task:MAIL", "MAIL"), 0.1)
        except TimeoutError:
            return True
        return False

    await eventually(held)
    await guard.close()


async def test_other_plans_are_the_other_guards(settings: Settings) -> None:
    admitted: list[tuple[str, str]] = []

    class Others:
        async def admit(self, plan: str, key: str) -> None:
            admitted.append((plan, key))

    guard = RateGuard(settings.config, lambda: AsyncLimiter("memory://"), Others())
    await guard.admit("gold", "MAIL")
    assert admitted == [("gold", "MAIL")]
    await guard.close()
