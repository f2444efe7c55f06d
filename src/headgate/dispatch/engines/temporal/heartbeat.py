"""Signs of life of an activity."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity


async def beat(timeout: timedelta) -> None:
    """Shows that the current activity lives, several times per `timeout`, until it is cancelled."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(timeout.total_seconds() / 3)
