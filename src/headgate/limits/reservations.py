"""Reservations: spend an estimate now, correct it when the cost is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from headgate.errors import InvalidInput, NotFound, StoreError
from headgate.limits.model import Charge, Decision
from headgate.limits.ports import Settlement

DEFAULT_TTL = 60.0
LONGEST_TTL = 86_400.0
ID_LENGTH = 128


class Reservation:
    """A cost held under an id. True if it was allowed.

    As a context manager it is cancelled when the block raises, and left as reserved when nobody settled it.
    """

    def __init__(self, id: str, decision: Decision, settle: Callable[[int], bool]) -> None:
        self._settle = settle
        self._open = decision.allowed and not decision.degraded
        self.id = id
        self.decision = decision

    def __bool__(self) -> bool:
        return self.decision.allowed

    def settle(self, actual: int) -> bool:
        """Corrects the cost to `actual`. False if there was nothing to correct: settled before, denied, or answered
        by a failure policy."""
        settled_cost(actual)
        if not self._open:
            return False
        applied = self._settle(actual)
        self._open = False
        return applied

    def cancel(self) -> bool:
        """Gives all of it back that still counts, and frees the id to be reserved anew."""
        return self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # What can't be given back stays spent; the block's own error is the one to be heard.
            with suppress(NotFound, StoreError):
                self.cancel()


class AsyncReservation:
    """`Reservation` for event loops."""

    def __init__(self, id: str, decision: Decision, settle: Callable[[int], Awaitable[bool]]) -> None:
        self._settle = settle
        self._open = decision.allowed and not decision.degraded
        self.id = id
        self.decision = decision

    def __bool__(self) -> bool:
        return self.decision.allowed

    async def settle(self, actual: int) -> bool:
        """Corrects the cost to `actual`. False if there was nothing to correct: settled before, denied, or answered
        by a failure policy."""
        settled_cost(actual)
        if not self._open:
            return False
        applied = await self._settle(actual)
        self._open = False
        return applied

    async def cancel(self) -> bool:
        """Gives all of it back that still counts, and frees the id to be reserved anew."""
        return await self.settle(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(NotFound, StoreError):
                await self.cancel()


def reservation_id(value: object) -> str:
    """An id as given, checked."""
    if not isinstance(value, str) or not 0 < len(value) <= ID_LENGTH or not value.isprintable():
        raise InvalidInput("id", f"use 1 to {ID_LENGTH} printable characters")
    return value


def held_us(ttl: float) -> int:
    """A time to live in microseconds, checked."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= LONGEST_TTL:
        raise InvalidInput("ttl", f"use seconds above 0 and up to {LONGEST_TTL:.0f}")
    return max(round(ttl * 1_000_000), 1)


def held_first(chain: list[Charge], cost: int) -> list[Charge]:
    """`chain` with the charges at full cost first: a store remembers the first one's, and a shadow that `cost` is
    too much for is charged less (`plans.PlanBook`)."""
    return sorted(chain, key=lambda charge: charge.cost != cost)


def settled_cost(actual: object) -> int:
    """An actual cost, checked: unlike a cost asked for, it may be 0."""
    if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
        raise InvalidInput("actual", f"{actual!r} is not a whole number of at least 0")
    return actual


def settled(id: str, settlement: Settlement) -> bool:
    """What the store's answer means to who settled."""
    if settlement is Settlement.UNKNOWN:
        raise NotFound("reservation", id)
    return settlement is Settlement.APPLIED
