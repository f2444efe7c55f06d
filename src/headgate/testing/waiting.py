"""Waiting for something real to happen, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(probe: Callable[[], Awaitable[T | None]], *, within: float = 30.0, every: float = 0.02) -> T: ...


@overload
async def eventually(probe: Callable[[], T | None], *, within: float = 30.0, every: float = 0.02) -> T: ...


async def eventually(probe: Callable[[], object], *, within: float = 30.0, every: float = 0.02) -> object:
    """The first truthy value of `probe`.

    Raises:
        TimeoutError: there was none within `within` seconds; has the last value.
    """
    deadline = time.monotonic() + within
    while True:
        value = probe()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {value!r} after {within} s")
        await asyncio.sleep(every)
