"""The settings of tasks' decorators, and their schedules in the database."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple, Unpack

from paceline.dispatch.config import DispatchConfig, DispatchSettings
from paceline.dispatch.periodic.periodic_tasks import Periodic
from paceline.dispatch.periodic.schedules import Schedule
from paceline.dispatch.queue import DispatchQueue
from paceline.errors import ConfigurationError, Conflict, InvalidInput

POLL_SECONDS = 1
"""The interval at which a worker polls an SQLite file for items of other processes; PostgreSQL notifies it."""
MAX_TRIES = 5


class Declared(NamedTuple):
    """A periodic task, as its decorator gives it."""

    item_type: str
    schedule: Schedule
    lane: str | None
    priority: int | None


async def declare_schedules(queue: DispatchQueue, schedules: Mapping[str, Declared]) -> None:
    """Writes the decorators' schedules. One that operators changed or paused stays so."""
    periodic = Periodic(queue)
    for name, (item_type, schedule, lane, priority) in schedules.items():
        # Another worker may write the same row concurrently, or queue a tick.
        for _ in range(MAX_TRIES - 1):
            with contextlib.suppress(Conflict):
                await periodic.declare(name, item_type, schedule, lane=lane, priority=priority)
                break
        else:
            await periodic.declare(name, item_type, schedule, lane=lane, priority=priority)


def declared_config(item_type: str, retries: int, **settings: Unpack[DispatchSettings]) -> DispatchConfig:
    """The settings of a task, as its decorator gives them.

    Raises:
        ConfigurationError: the name or a setting is wrong.
    """
    DispatchConfig(item_type="TASK").changed(settings)  # rejects a wrong one, before the name
    try:
        config = DispatchConfig(
            item_type=item_type,
            max_dispatch_retries=retries + 1,
            jitter_window_ms=0,
            dispatch_interval_secs=POLL_SECONDS,
        )
    except InvalidInput as error:
        raise ConfigurationError("name", error.problem) from None
    return config.changed(settings)
