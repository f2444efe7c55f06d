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
    """A cost reserved under an id. True if it was allowed.

        with limiter.reserve("user:1", "tokens", 500) as reservation:
            reservation.settle(call_model())

    As a context manager it is cancelled when the block raises, and stays as reserved when it was not settled.
    """

    def __init__(self, id: str, decision: Decision, settle: Callable[[int], bool]) -> None:
        self._settle = settle
        self._open = decision.allowed and not decision.degraded
        self.id = id
        self.decision = decision

    def __bool__(self) -> bool:
        return self.decision.allowed

    def settle(self, actual: int) -> bool:
        """Corrects the cost to `actual`. False if there was nothing to correct: settled before, denied, or decided by
        a failure policy. Raises what `Limiter.settle` does."""
        check_actual(actual)
        if not self._open:
            return False
        applied = self._settle(actual)
        self._open = False
        return applied

    def cancel(self) -> bool:
        """Gives back all of the cost that still counts, and frees the id to be reserved anew."""
        return self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # A cost that can't be given back stays spent; the block's own error is raised.
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
        """Corrects the cost to `actual`. False if there was nothing to correct: settled before, denied, or decided by
        a failure policy. Raises what `Limiter.settle` does."""
        check_actual(actual)
        if not self._open:
            return False
        applied = await self._settle(actual)
        self._open = False
        return applied

    async def cancel(self) -> bool:
        """Gives back all of the cost that still counts, and frees the id to be reserved anew."""
        return await self.settle(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(NotFound, StoreError):
                await self.cancel()


def check_id(value: object) -> str:
    """`value`, if it is a valid id; else raises `InvalidInput`."""
    if not isinstance(value, str) or not 0 < len(value) <= ID_LENGTH or not value.isprintable():
        raise InvalidInput("id", f"use 1 to {ID_LENGTH} printable characters")
    return value


def check_ttl(ttl: float) -> int:
    """A time to live in microseconds; raises `InvalidInput` if it can't be one."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= LONGEST_TTL:
        raise InvalidInput("ttl", f"use seconds above 0 and up to {LONGEST_TTL:.0f}")
    return max(round(ttl * 1_000_000), 1)


def full_cost_first(chain: list[Charge], cost: int) -> list[Charge]:
    """`chain` with the charges at full cost first. A store records the first one's cost, and a shadow plan whose
    capacity is below `cost` has another (`plan_book.PlanBook`)."""
    return sorted(chain, key=lambda charge: charge.cost != cost)


def check_actual(actual: object) -> int:
    """`actual`, if it is a valid cost; it may be 0. Else raises `InvalidInput`."""
    if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
        raise InvalidInput("actual", f"{actual!r} is not a whole number of at least 0")
    return actual


def check_settlement(id: str, settlement: Settlement) -> bool:
    """Whether a settlement was applied.

    Raises:
        NotFound: there is no such reservation.
    """
    if settlement is Settlement.UNKNOWN:
        raise NotFound("reservation", id)
    return settlement is Settlement.APPLIED
