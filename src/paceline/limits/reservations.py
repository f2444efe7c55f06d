"""Checks a reservation's arguments, and the result of its settlement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from paceline.errors import InvalidInput, NotFound
from paceline.limits.ports import Settlement

Link: TypeAlias = tuple[str, str, int]
"""A part of a chain: key, plan, cost."""

DEFAULT_TTL = 60.0
LONGEST_TTL = 86_400.0
ID_LENGTH = 128


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


def check_actual(actual: object) -> int:
    """`actual`, if it is a valid cost; it may be 0. Else raises `InvalidInput`."""
    if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
        raise InvalidInput("actual", f"{actual!r} is not a whole number of at least 0")
    return actual


def actual_links(links: Sequence[Link], actual: int | Mapping[str, int]) -> list[Link]:
    """Links with their actual costs: one for all of them, or by plan, where one that is not named keeps its cost.

    Raises:
        InvalidInput: a cost can't be one, or a plan was not reserved.
    """
    if not isinstance(actual, Mapping):
        return [(key, plan, check_actual(actual)) for key, plan, _ in links]
    for plan in actual.keys() - {plan for _, plan, _ in links}:
        raise InvalidInput("actual", f"plan {plan!r} is not part of this reservation")
    return [(key, plan, check_actual(actual.get(plan, cost))) for key, plan, cost in links]


def check_settlement(id: str, settlement: Settlement) -> bool:
    """Whether a settlement was applied.

    Raises:
        NotFound: there is no such reservation.
    """
    if settlement is Settlement.UNKNOWN:
        raise NotFound("reservation", id)
    return settlement is Settlement.APPLIED
