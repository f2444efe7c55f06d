"""The states and holds that a batch of calls has locked, as values. Calls read and change them; changes are written
together: to the rows of a database, or the records of a host's table."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from paceline.limits.algorithms import State, life_us
from paceline.limits.chain import refunded, rule_on
from paceline.limits.holds import HoldName, HoldRecord, held_part, hold_name, place_hold, renew_hold, settle_hold
from paceline.limits.model import Charge, Decision, Reason
from paceline.limits.ports import Hold, Settlement

_READABLE = 200
_TEST_LIFE_US = 600_000_000


class Cell(NamedTuple):
    """The primary key of a state's row."""

    key: str
    plan: str


def column(key: str) -> str:
    """A key as it is stored: as it is if it is short, else a digest with its beginning, longer than any short key."""
    if len(key) <= _READABLE and "\0" not in key:
        return key
    beginning = key.replace("\0", ".")[:_READABLE]
    return f"{sha256(key.encode()).hexdigest()}:{beginning}".ljust(_READABLE + 1, ".")[:255]


def cell_of(charge: Charge) -> Cell:
    return Cell(column(charge.key), charge.rule.plan)


def hold_row_of(hold_id: str, chain: Sequence[Charge]) -> HoldName:
    """The primary key of a hold's row."""
    name = hold_name(hold_id, chain)
    return HoldName(column(name.key), name.id)


class LockedRows:
    """States and holds under lock, and the time of the decision."""

    def __init__(self, states: dict[Cell, State], holds: dict[HoldName, HoldRecord], now_us: int) -> None:
        self._states, self._holds, self._now_us = states, holds, now_us
        self.state_writes: dict[Cell, tuple[State | None, int]] = {}
        """States to write with the time each expires; `None` to delete."""
        self.hold_writes: dict[HoldName, HoldRecord] = {}
        """Holds to write."""

    def decide(self, chain: Sequence[Charge], spend: bool, hold: Hold | None, given_us: int | None) -> Decision:
        now_us = self._now_us if given_us is None else given_us
        name = hold_row_of(hold.id, held_part(chain, hold.places)) if hold is not None and spend else None
        record = self._record(name, now_us) if name is not None else None
        repeated = record is not None and not record.cancelled
        ruling = rule_on(chain, self._read(chain), now_us, spend=spend and not repeated)
        decision, writes = ruling
        if repeated:
            return decision.but(allowed=True, retry_after_us=0, reason=Reason.OK)
        if hold is not None and name is not None and decision.allowed:
            held_writes, record = place_hold(chain, ruling, now_us + hold.ttl_us, hold.places)
            writes = tuple(held_writes)
            self._write_hold(name, record)
        for charge, state in zip(chain, writes, strict=True):
            if state is not None:
                self._write(charge, state, now_us, given_us)
        return decision

    def refund(self, chain: Sequence[Charge], given_us: int | None) -> None:
        now_us = self._now_us if given_us is None else given_us
        for charge in chain:
            state = refunded(charge, self._states.get(cell_of(charge)), now_us)
            self._write(charge, state, now_us, given_us)

    def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], given_us: int | None
    ) -> Settlement:
        now_us = self._now_us if given_us is None else given_us
        name = hold_row_of(hold_id, chain)
        record = self._record(name, now_us)
        if record is None:
            return Settlement.UNKNOWN
        if record.settled:
            return Settlement.REPEATED
        states, record = settle_hold(chain, self._read(chain), now_us, record, actual)
        for charge, state in zip(chain, states, strict=True):
            self._write(charge, state, now_us, given_us)
        self._write_hold(name, record)
        return Settlement.APPLIED

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, given_us: int | None) -> Settlement:
        now_us = self._now_us if given_us is None else given_us
        name = hold_row_of(hold_id, chain)
        record = self._record(name, now_us)
        if record is None or record.settled:
            return Settlement.UNKNOWN
        after, renewed = renew_hold(chain, self._read(chain), now_us, record, now_us + ttl_us)
        for charge, state in zip(chain, after, strict=True):
            if state is not None:
                self._write(charge, state, now_us, given_us)
        self._write_hold(name, renewed)
        return Settlement.UNKNOWN if renewed.settled else Settlement.APPLIED

    def reset(self, chain: Sequence[Charge]) -> None:
        for charge in chain:
            cell = cell_of(charge)
            self._states.pop(cell, None)
            self.state_writes[cell] = (None, 0)

    def _read(self, chain: Sequence[Charge]) -> list[State | None]:
        return [self._states.get(cell_of(charge)) for charge in chain]

    def _record(self, name: HoldName, now_us: int) -> HoldRecord | None:
        record = self._holds.get(name)
        return record if record is not None and now_us < record.expires_us else None

    def _write_hold(self, name: HoldName, record: HoldRecord) -> None:
        self._holds[name] = self.hold_writes[name] = record

    def _write(self, charge: Charge, state: State, now_us: int, given_us: int | None) -> None:
        cell = cell_of(charge)
        expires_us = now_us + life_us(charge.rule.spec, state, now_us)
        if given_us is not None:
            # A time given by a test is not the database's, by which rows are pruned.
            expires_us = max(expires_us, self._now_us + _TEST_LIFE_US)
        self._states[cell] = state
        self.state_writes[cell] = (state, expires_us)
