"""Callers who ask the very same in one turn of the event loop: Redis reads and writes the state once for all of them.

The script decides one caller after another at one time, as it would in as many calls; only cheaper. A hot key under
many tasks is where this counts, and where a limiter is needed most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from headgate.limits.model import Charge
from headgate.limits.stores.redis_calls import Calls
from headgate.redis.async_client import AsyncRedisClient
from headgate.redis.redirects import Refused

LARGEST = 128
"""Callers of one script run: Redis serves nobody else meanwhile."""

Share: TypeAlias = tuple[bytes, int]
"""A reply, and which of its decisions is the caller's."""


class _SharedCall:
    __slots__ = ("callers", "chain", "command", "now_us", "slot")

    def __init__(self, chain: Sequence[Charge], now_us: int | None, slot: int) -> None:
        self.chain, self.now_us, self.slot = chain, now_us, slot
        self.callers: list[asyncio.Future[Share]] = []
        self.command = b""


class Coalescer:
    """Gathers callers by what they ask and sends one call for each crowd at the end of the turn."""

    def __init__(self, calls: Calls, client: AsyncRedisClient) -> None:
        self._calls, self._client = calls, client
        self._crowds: dict[Any, _SharedCall] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, chain: Sequence[Charge], now_us: int | None, slot: int) -> asyncio.Future[Share]:
        """The reply to come for whoever asks for `chain`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Another loop than last time: whoever waited on that one is gone with it.
            self._loop = loop
            self._crowds = {}
        crowds = self._crowds
        name = chain[0] if len(chain) == 1 and now_us is None else (now_us, *chain)
        crowd = crowds.get(name)
        if crowd is None:
            if not crowds:
                loop.call_soon(self._send)
            crowd = crowds[name] = _SharedCall(chain, now_us, slot)
        caller: asyncio.Future[Share] = loop.create_future()
        crowd.callers.append(caller)
        if len(crowd.callers) == LARGEST:
            # Let it go as it is; the next caller begins another.
            crowds[name, len(crowds)] = crowds.pop(name)
        return caller

    def _send(self) -> None:
        crowds, self._crowds = self._crowds, {}
        for crowd in crowds.values():
            # Who has given up before anything was sent is not charged.
            crowd.callers = [caller for caller in crowd.callers if not caller.done()]
            if not crowd.callers:
                continue
            crowd.command = self._calls.spending(crowd.chain, crowd.now_us, len(crowd.callers))
            try:
                answer = self._client.call(crowd.command, crowd.slot)
            except Exception as error:
                _fail(crowd, error)
                continue
            if answer is None:
                self._run(self._execute(crowd))
            else:
                answer.add_done_callback(partial(self._answered, crowd))

    def _answered(self, crowd: _SharedCall, answer: asyncio.Future[Any]) -> None:
        error = answer.exception()
        if error is not None:
            _fail(crowd, error)
            return
        reply = answer.result()
        if isinstance(reply, Refused):
            self._run(self._remedied(crowd, reply))
        else:
            _share(crowd, reply)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        # Held here: the loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, crowd: _SharedCall) -> None:
        try:
            _share(crowd, await self._client.execute(crowd.command, self._calls.script, crowd.slot))
        except Exception as error:
            _fail(crowd, error)

    async def _remedied(self, crowd: _SharedCall, refused: Refused) -> None:
        try:
            _share(crowd, await self._client.remedied(refused, crowd.command, self._calls.script, crowd.slot))
        except Exception as error:
            _fail(crowd, error)


def _share(crowd: _SharedCall, reply: bytes) -> None:
    for time, caller in enumerate(crowd.callers):
        if not caller.done():
            caller.set_result((reply, time))


def _fail(crowd: _SharedCall, error: BaseException) -> None:
    for caller in crowd.callers:
        if not caller.done():
            caller.set_exception(error)
