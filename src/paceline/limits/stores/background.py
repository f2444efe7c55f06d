"""A limit store of an event loop, for threads: its calls run, batched, on one loop in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from paceline.background import Background
from paceline.limits.model import Charge, Decision
from paceline.limits.ports import AsyncLimitStore, Hold, Settlement

Store = TypeVar("Store", bound=AsyncLimitStore)


class BackgroundLimitStore(Generic[Store]):
    """A `LimitStore` over an `AsyncLimitStore`. A forked child makes its own."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._background = Background(make)

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        return self._background.run(lambda store: store.decide(chain, spend=spend, hold=hold, now_us=now_us))

    def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        return self._background.run(lambda store: store.decide_many(chains, now_us=now_us))

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        self._background.run(lambda store: store.refund(chain, now_us=now_us))

    def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        return self._background.run(lambda store: store.settle(hold_id, chain, actual, now_us=now_us))

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None) -> Settlement:
        return self._background.run(lambda store: store.renew(hold_id, chain, ttl_us, now_us=now_us))

    def reset(self, chain: Sequence[Charge]) -> None:
        self._background.run(lambda store: store.reset(chain))

    def close(self) -> None:
        self._background.close()
