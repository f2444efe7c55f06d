"""Waiting for something real to happen, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")
EVERY = 0.02
LONGEST_PAUSE = 0.25


def pause(began: float, probed: float, every: float = EVERY) -> float:
    """How long to wait until the next probe: seconds, for a wait that began then and whose last probe did then.

    At least `every`. Longer, if the probe takes long (probing takes at most a tenth of the time) and if the wait does
    (what is waited for is noticed a twentieth later at most): many tests wait at once, for processes that need the CPU.
    """
    if every == 0:
        return 0
    now = time.monotonic()
    return max(every, min(LONGEST_PAUSE, max(9 * (now - probed), (now - began) / 20)))


@overload
async def eventually(probe: Callable[[], Awaitable[T | None]], *, within: float = 30.0, every: float = EVERY) -> T: ...


@overload
async def eventually(probe: Callable[[], T | None], *, within: float = 30.0, every: float = EVERY) -> T: ...


async def eventually(probe: Callable[[], object], *, within: float = 30.0, every: float = EVERY) -> object:
    """The first truthy value of `probe`, which is called every so many seconds, and less often after a while.

    Raises:
        TimeoutError: there was none within `within` seconds; has the last value.
    """
    began = time.monotonic()
    while True:
        probed = time.monotonic()
        value = probe()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > began + within:
            raise TimeoutError(f"still {value!r} after {within} s")
        await asyncio.sleep(pause(began, probed, every))
