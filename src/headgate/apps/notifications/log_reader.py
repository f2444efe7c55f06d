"""The loop of a reader of the message log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headgate.errors import StoreError
from headgate.messaging import MessageSource

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
RECEIVE_SECONDS = 0.5
"""The longest a reader waits for records before it looks whether it shall stop."""

_log = logging.getLogger(__name__)


async def read_until_stopped(
    join: Callable[[], Awaitable[MessageSource]],
    step: Callable[[MessageSource], Awaitable[None]],
    stop: asyncio.Event,
) -> None:
    """Joins a group of readers and takes step after step until `stop` is set; then leaves. While a store does not
    answer, it waits and tries again."""
    source: MessageSource | None = None
    pause = FIRST_PAUSE
    try:
        while not stop.is_set():
            try:
                if source is None:
                    source = await join()
                await step(source)
                pause = FIRST_PAUSE
            except StoreError as error:
                _log.warning("reading waits: %s", error)
                await wait_for_stop(stop, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
    finally:
        if source is not None:
            await leave(source)


async def leave(source: MessageSource) -> None:
    """Leaves the group. If the log does not answer, the membership ends by itself after a while."""
    try:
        await source.close()
    except StoreError as error:
        _log.warning("the log could not be left: %s", error)


async def wait_for_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Waits, but not longer than until `stop`; whether it came."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
