"""Commands that only read slots and configs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.terminal import run
from paceline.server.settings import Settings
from paceline.server.wiring.slots import open_slots
from paceline.slots import SlotScheduler

T = TypeVar("T")


def read_slots(read: Callable[[SlotScheduler, Settings], Awaitable[T]]) -> T:
    """The result of `read`, which changes nothing."""

    async def work(settings: Settings) -> T:
        async with open_slots(settings) as slots:
            return await read(slots, settings)

    with read_only_settings() as settings:
        return run(work(settings))
