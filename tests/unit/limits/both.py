"""One test for `Limiter` and `AsyncLimiter`: both awaited, over a store with a switch."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from paceline import AsyncLimiter, Limiter
from paceline.errors import StoreRefused, StoreUnavailable
from paceline.limits.model import Charge, Decision, Reason
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock

START = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)


class SwitchedStore:
    """A store that is remote for a limiter, and can be unreachable. Counts its calls."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryLimitStore(clock=clock)
        self.down = False
        self.refuses = False
        self.calls: list[str] = []
        self.closed = False

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        self.calls.append(name)
        if self.down:
            raise StoreUnavailable("switched off")
        if self.refuses:
            raise StoreRefused("redis_url", "refuses the password")
        return getattr(self.inner, name)(*args, **options)

    def decide(self, chain: Sequence[Charge], **options: Any) -> Decision:
        answer: Decision = self._call("decide", chain, **options)
        return answer

    def decide_many(self, chains: Sequence[Sequence[Charge]], **options: Any) -> list[Decision]:
        answer: list[Decision] = self._call("decide_many", chains, **options)
        return answer

    def refund(self, chain: Sequence[Charge], **options: Any) -> None:
        self._call("refund", chain, **options)

    def settle(self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], **options: Any) -> Any:
        return self._call("settle", hold_id, chain, actual, **options)

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, **options: Any) -> Any:
        return self._call("renew", hold_id, chain, ttl_us, **options)

    def reset(self, chain: Sequence[Charge]) -> None:
        self._call("reset", chain)

    def close(self) -> None:
        self.closed = True


class AsyncSwitchedStore:
    """`SwitchedStore`, awaited; can also hang."""

    def __init__(self, store: SwitchedStore) -> None:
        self._store = store
        self.hangs = False

    async def _answer(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    async def decide(self, chain: Sequence[Charge], **options: Any) -> Decision:
        await self._answer()
        return self._store.decide(chain, **options)

    async def decide_many(self, chains: Sequence[Sequence[Charge]], **options: Any) -> list[Decision]:
        await self._answer()
        return self._store.decide_many(chains, **options)

    async def refund(self, chain: Sequence[Charge], **options: Any) -> None:
        self._store.refund(chain, **options)

    async def settle(self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], **options: Any) -> Any:
        return self._store.settle(hold_id, chain, actual, **options)

    async def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, **options: Any) -> Any:
        return self._store.renew(hold_id, chain, ttl_us, **options)

    async def reset(self, chain: Sequence[Charge]) -> None:
        self._store.reset(chain)

    async def close(self) -> None:
        self._store.close()


class Awaited:
    """A `Limiter` whose calls are awaited."""

    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.limiter, name)
        if not callable(attribute):
            return attribute

        async def call(*args: Any, **options: Any) -> Any:
            answer = attribute(*args, **options)
            if inspect.isawaitable(answer):
                answer = await answer
            return Awaited(answer) if type(answer).__name__ == "Reservation" else answer

        return call

    def __bool__(self) -> bool:
        return bool(self.limiter)


class Watcher:
    """Records what a limiter reports."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.store_calls: list[tuple[str, bool]] = []
        self.breaker: list[str] = []
        self.leases: list[int] = []

    def decided(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        assert seconds >= 0
        self.store_calls.append((operation, failed))

    def breaker_moved(self, state: str) -> None:
        self.breaker.append(state)

    def leased(self, plan: str, tokens: int) -> None:
        self.leases.append(tokens)

    @property
    def reasons(self) -> list[Reason]:
        return [decision.reason for decision in self.decisions]


class World:
    """A clock, a store with a switch, and limiters on it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = FakeClock(START)
        self.store = SwitchedStore(self.clock)
        self.async_store = AsyncSwitchedStore(self.store)
        self.pauses: list[float] = []
        self.watcher = Watcher()

    def limiter(self, **options: Any) -> Any:
        """A limiter on the switched store, or `on="memory"` on one in this process; pauses move the clock."""
        on = options.pop("on", "switched")
        options = {"clock": self.clock, "observer": self.watcher, **options}

        def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            self.clock.advance(us=round(seconds * 1_000_000))

        async def async_pause(seconds: float) -> None:
            pause(seconds)
            await asyncio.sleep(0)

        if self.kind == "sync":
            store: Any = self.store if on == "switched" else MemoryLimitStore(clock=self.clock)
            return Awaited(Limiter(store, pause=pause, **options))
        store = self.async_store if on == "switched" else AsyncMemoryLimitStore(MemoryLimitStore(clock=self.clock))
        return AsyncLimiter(store, pause=async_pause, **options)
