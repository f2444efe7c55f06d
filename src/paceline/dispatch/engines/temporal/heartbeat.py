"""Heartbeats of an activity."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity


async def send_heartbeats(timeout: timedelta) -> None:
    """Sends heartbeats of the current activity, three per `timeout`, until it is cancelled."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(timeout.total_seconds() / 3)
