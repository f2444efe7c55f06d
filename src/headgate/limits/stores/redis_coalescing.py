"""Coalescing: equal calls of one turn of the event loop become one run of the script.

The script decides one caller after another, as it would in as many calls; only cheaper. It matters for a hot key under
many tasks, where a limiter is needed most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from headgate.limits.model import Charge
from headgate.limits.stores.redis_commands import MAX_TIMES, Commands
from headgate.redis.async_client import AsyncRedisClient
from headgate.redis.redirects import ErrorReply

Share: TypeAlias = tuple[bytes, int]
"""A reply, and which of its decisions is the caller's."""


class _SharedCall:
    __slots__ = ("callers", "chain", "command", "now_us", "slot")

    def __init__(self, chain: Sequence[Charge], now_us: int | None, slot: int) -> None:
        self.chain, self.now_us, self.slot = chain, now_us, slot
        self.callers: list[asyncio.Future[Share]] = []
        self.command = b""


class Coalescer:
    """Collects the callers of equal chains, and sends one call per chain at the end of the turn."""

    def __init__(self, commands: Commands, client: AsyncRedisClient) -> None:
        self._commands, self._client = commands, client
        self._pending: dict[Any, _SharedCall] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, chain: Sequence[Charge], now_us: int | None, slot: int) -> asyncio.Future[Share]:
        """A future of the reply, and of the caller's place in it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Another loop than last time: the callers on that one are gone with it.
            self._loop = loop
            self._pending = {}
        pending = self._pending
        name = chain[0] if len(chain) == 1 and now_us is None else (now_us, *chain)
        call = pending.get(name)
        if call is None:
            if not pending:
                loop.call_soon(self._send)
            call = pending[name] = _SharedCall(chain, now_us, slot)
        caller: asyncio.Future[Share] = loop.create_future()
        call.callers.append(caller)
        if len(call.callers) == MAX_TIMES:
            # Full: the next caller starts another call.
            pending[name, len(pending)] = pending.pop(name)
        return caller

    def _send(self) -> None:
        pending, self._pending = self._pending, {}
        for call in pending.values():
            # A caller that was cancelled before the call is sent is not charged.
            call.callers = [caller for caller in call.callers if not caller.done()]
            if not call.callers:
                continue
            call.command = self._commands.spending(call.chain, call.now_us, len(call.callers))
            try:
                future = self._client.call(call.command, call.slot)
            except Exception as error:
                _fail(call, error)
                continue
            if future is None:
                self._run(self._execute(call))
            else:
                future.add_done_callback(partial(self._on_reply, call))

    def _on_reply(self, call: _SharedCall, future: asyncio.Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            _fail(call, error)
            return
        reply = future.result()
        if isinstance(reply, ErrorReply):
            self._run(self._follow_redirects(call, reply))
        else:
            _share(call, reply)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        # Held here: the loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, call: _SharedCall) -> None:
        try:
            _share(call, await self._client.execute(call.command, self._commands.script, call.slot))
        except Exception as error:
            _fail(call, error)

    async def _follow_redirects(self, call: _SharedCall, error_reply: ErrorReply) -> None:
        try:
            _share(
                call, await self._client.follow_redirects(error_reply, call.command, self._commands.script, call.slot)
            )
        except Exception as error:
            _fail(call, error)


def _share(call: _SharedCall, reply: bytes) -> None:
    for time, caller in enumerate(call.callers):
        if not caller.done():
            caller.set_result((reply, time))


def _fail(call: _SharedCall, error: BaseException) -> None:
    for caller in call.callers:
        if not caller.done():
            caller.set_exception(error)
