"""Waiting for something real to happen, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def eventually(probe: Callable[[], T | Awaitable[T]], *, within: float = 30.0, every: float = 0.02) -> T:
    """The first truthy value of `probe`; `TimeoutError` with its last value after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        value = probe()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return cast(T, value)
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {value!r} after {within} s")
        await asyncio.sleep(every)
