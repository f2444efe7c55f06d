"""Coalescing: equal calls of one turn of the event loop become one run of the script.

The script decides one caller after another, as separate calls would, at a lower cost. It matters for a hot key under
many tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from paceline.limits.model import Charge
from paceline.limits.stores.redis_commands import MAX_TIMES, Commands
from paceline.redis.async_client import AsyncRedisClient
from paceline.redis.redirects import ErrorReply

Share: TypeAlias = tuple[bytes, int]
"""A reply, and which of its decisions is the caller's."""


class _SharedCall:
    """A call of several callers. The connection gives it the reply, as it would a future."""

    __slots__ = ("_coalescer", "callers", "chain", "command", "now_us", "slot")

    def __init__(self, coalescer: Coalescer, chain: Sequence[Charge], now_us: int | None, slot: int) -> None:
        self._coalescer = coalescer
        self.chain, self.now_us, self.slot = chain, now_us, slot
        self.callers: list[asyncio.Future[Share]] = []
        self.command = b""

    def done(self) -> bool:
        """Never: each caller is checked when there is a reply."""
        return False

    def set_result(self, reply: Any) -> None:
        """Gives each caller its place in the reply."""
        if reply.__class__ is ErrorReply:
            self._coalescer.run(self._coalescer.follow_redirects(self, reply))
            return
        for time, caller in enumerate(self.callers):
            if not caller.done():
                caller.set_result((reply, time))

    def set_exception(self, error: BaseException) -> None:
        """Raises the error to each caller."""
        for caller in self.callers:
            if not caller.done():
                caller.set_exception(error)


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
            # A new event loop: the callers of the last one are gone with it.
            self._loop = loop
            self._pending = {}
        pending = self._pending
        name = chain[0] if len(chain) == 1 and now_us is None else (now_us, *chain)
        call = pending.get(name)
        if call is None:
            if not pending:
                loop.call_soon(self._send)
            call = pending[name] = _SharedCall(self, chain, now_us, slot)
        caller: asyncio.Future[Share] = loop.create_future()
        call.callers.append(caller)
        if len(call.callers) == MAX_TIMES:
            # Full: the next caller starts another call.
            pending[name, len(pending)] = pending.pop(name)
        return caller

    def _send(self) -> None:
        pending, self._pending = self._pending, {}
        for call in pending.values():
            callers = call.callers
            if len(callers) > 1 or callers[0].done():
                # A caller that was cancelled before the call is sent is not charged.
                callers = call.callers = [caller for caller in callers if not caller.done()]
                if not callers:
                    continue
            call.command = self._commands.spending(call.chain, call.now_us, len(callers))
            try:
                is_sent = self._client.send(call.command, call.slot, call)
            except Exception as error:
                call.set_exception(error)
                continue
            if not is_sent:
                self.run(self._execute(call))

    def run(self, work: Any) -> None:
        """Runs work in a task that is not awaited."""
        task = asyncio.get_running_loop().create_task(work)
        # Held here: the loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, call: _SharedCall) -> None:
        try:
            call.set_result(await self._client.execute(call.command, self._commands.script, call.slot))
        except Exception as error:
            call.set_exception(error)

    async def follow_redirects(self, call: _SharedCall, error_reply: ErrorReply) -> None:
        """Retries a call that got an error reply, which means that it was not run."""
        script = self._commands.script
        try:
            call.set_result(await self._client.follow_redirects(error_reply, call.command, script, call.slot))
        except Exception as error:
            call.set_exception(error)
