"""Writes the settings and schedules of tasks' decorators into the database."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from paceline.dispatch.config import DispatchConfig, DispatchSettings
from paceline.dispatch.periodic import Periodic
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.schedules import Schedule
from paceline.errors import ConfigurationError, Conflict, InvalidInput

POLL_SECONDS = 1
"""The interval at which a worker polls an SQLite file for items of other processes; PostgreSQL notifies it."""
MAX_TRIES = 5


async def state_config(queue: DispatchQueue, config: DispatchConfig) -> None:
    """Writes the decorator's settings. Other settings, such as the kill switch, are left to operators."""
    stored = await queue.define(config)
    stated: DispatchSettings = {
        "max_dispatch_retries": config.max_dispatch_retries,
        "admission_plan": config.admission_plan,
    }
    if config.concurrency is not None:
        stated["concurrency"] = config.concurrency
    if config.lane_concurrency is not None:
        stated["lane_concurrency"] = config.lane_concurrency
    if any(getattr(stored, name) != value for name, value in stated.items()):
        await queue.configure(config.item_type, **stated)


async def state_schedules(queue: DispatchQueue, schedules: Mapping[str, tuple[str, Schedule]]) -> None:
    """Writes the decorators' schedules. One that operators paused stays paused."""
    periodic = Periodic(queue)
    for name, (item_type, schedule) in schedules.items():
        # Another worker may write the same row concurrently, or queue a tick.
        for _ in range(MAX_TRIES - 1):
            with contextlib.suppress(Conflict):
                await periodic.put(name, item_type, schedule)
                break
        else:
            await periodic.put(name, item_type, schedule)


def first_config(item_type: str, retries: int, plan: str | None) -> DispatchConfig:
    """A task's initial settings.

    Raises:
        ConfigurationError: the name is wrong.
    """
    try:
        return DispatchConfig(
            item_type=item_type,
            max_dispatch_retries=retries + 1,
            jitter_window_ms=0,
            dispatch_interval_secs=POLL_SECONDS,
            admission_plan=plan,
        )
    except InvalidInput as error:
        raise ConfigurationError("name", error.problem) from None
