"""Holds: what a store records of a reservation, and how it is settled.

The promise: however late a reservation is cancelled, work that was admitted and not cancelled stays within the limit.
So a hold gives back only cost that still counts, and only where it counts: in the window it was taken in, at the time
it was taken, or of a bucket's debt what the refill has not paid. Cost that no longer counts has made its room already.

Stores that run Python keep a `HoldRecord` under its `hold_name`. Lua does the same with the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from paceline.limits import algorithms
from paceline.limits.algorithms import Place, State
from paceline.limits.chain import CALENDAR, Ruling
from paceline.limits.model import Charge
from paceline.limits.specs import Concurrency

_READABLE = 95
_DIGEST = 32


class HoldName(NamedTuple):
    """The name a hold is recorded under: a key of its chain, and an id of at most 128 characters."""

    key: str
    id: str


class Mark(NamedTuple):
    """A plan's part of a hold: the algorithm it was charged under, the place in its state, and the cost."""

    tag: int
    place: Place
    cost: int


PLACES = Concurrency.tag
UNCHARGED = 0
"""The tag of a shadow that had no room: it was not charged, so it gets nothing back."""


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """Costs held until `expires_us`. `marks` are sorted by key and plan, in whatever order the chain was written."""

    marks: tuple[Mark, ...]
    expires_us: int
    settled: bool = False

    @property
    def cancelled(self) -> bool:
        """Whether it was settled at nothing: then its id can be reserved, and charged, again."""
        return self.settled and not self.marks


def hold_name(hold_id: str, chain: Sequence[Charge]) -> HoldName:
    """The name of a hold of `chain`: the same id on other keys or plans is another hold."""
    cells = sorted((charge.key, charge.rule.plan) for charge in chain)
    digest = sha256(repr((hold_id, cells)).encode()).hexdigest()[:_DIGEST]
    return HoldName(cells[0][0], f"{hold_id[:_READABLE]}:{digest}")


def held_part(chain: Sequence[Charge], places: bool) -> Sequence[Charge]:
    """The charges of a chain that a hold is about."""
    return [charge for charge in chain if charge.rule.spec.tag == PLACES] if places else chain


def place_hold(
    chain: Sequence[Charge], ruling: Ruling, expires_us: int, places: bool = False
) -> tuple[list[State | None], HoldRecord]:
    """The states to write when `ruling` passed `chain`, and the record of a hold of each held charge's cost."""
    writes, states, marks = list(ruling.writes), ruling.decision.states, []
    for index in _order(chain):
        _, rule, cost = chain[index]
        spec, write = rule.spec, writes[index]
        if places and spec.tag != PLACES:
            continue
        if write is not None and states[index].allowed:
            writes[index], place = algorithms.hold(spec, write, cost)
            marks.append(Mark(spec.tag, place, cost))
        else:
            marks.append(Mark(UNCHARGED, (0, 0), cost))
    return writes, HoldRecord(tuple(marks), expires_us)


def renew_hold(
    chain: Sequence[Charge], states: Sequence[State | None], now_us: int, record: HoldRecord, expires_us: int
) -> tuple[Sequence[State | None], HoldRecord]:
    """The states after the places of `record` were renewed, and the record to keep then. If a place has expired and
    there is no room for it, the hold is cancelled."""
    after: list[State | None] = [None] * len(chain)
    marks = list(record.marks)
    for position, index in enumerate(_order(chain)):
        spec, mark = chain[index].rule.spec, record.marks[position]
        if mark.tag == PLACES and isinstance(spec, Concurrency):
            view = algorithms.at(spec, states[index], now_us)
            renewed = algorithms.renew(spec, view, now_us, mark.cost, mark.place)
            if renewed is None:
                return settle_hold(chain, states, now_us, record, 0)
            after[index], place = algorithms.hold(spec, renewed, mark.cost)
            marks[position] = mark._replace(place=place)
    return after, replace(record, marks=tuple(marks), expires_us=expires_us)


def settle_hold(
    chain: Sequence[Charge],
    states: Sequence[State | None],
    now_us: int,
    record: HoldRecord,
    actual: int | Sequence[int],
    wall_us: int | None = None,
) -> tuple[list[State], HoldRecord]:
    """The states after the costs of `record` turned out to be `actual`, and the record to keep then. One actual cost is
    that of every charge; several are in the order of the chain.

    Less than held is given back as far as it still counts; more is taken in any case, up to the limit.
    """
    after: list[State] = [()] * len(chain)
    actuals = per_charge(actual, chain)
    for index, mark in zip(_order(chain), record.marks, strict=True):
        spec, cost = chain[index].rule.spec, actuals[index]
        spec_us = now_us if wall_us is None or spec.tag != CALENDAR else wall_us
        view = algorithms.at(spec, states[index], spec_us)
        if mark.tag == spec.tag:
            view = algorithms.release(spec, view, mark.cost, cost, mark.place)
        if cost > mark.cost:
            view = algorithms.take(spec, view, spec_us, cost - mark.cost)
        after[index] = view
    return after, replace(record, settled=True, marks=record.marks if any(actuals) else ())


def per_charge(actual: int | Sequence[int], chain: Sequence[Charge]) -> Sequence[int]:
    """The actual cost of each charge of a chain."""
    return [actual] * len(chain) if isinstance(actual, int) else actual


def _order(chain: Sequence[Charge]) -> list[int]:
    return sorted(range(len(chain)), key=lambda index: (chain[index].key, chain[index].rule.plan))
