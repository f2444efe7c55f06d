"""Limits of all processes of one user on a host, in memory that they share: no server, and exact.

The table and its lock are in `host_table.py`. The clock is the host's, as a database's is.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple, Unpack
from urllib.parse import parse_qsl

from paceline.errors import ConfigurationError, StoreError, StoreUnavailable
from paceline.limits.algorithms import ARITHMETIC, stranded
from paceline.limits.chain import rule_on
from paceline.limits.fast_path import FastPath
from paceline.limits.holds import HoldName, HoldRecord, Mark, held_part
from paceline.limits.model import Charge, Decision, Reason, Rule
from paceline.limits.ports import Hold, Settlement
from paceline.limits.store_health import DEFAULT_DEADLINE
from paceline.limits.stores.host_table import Busy, Change, HostTable, open_tables
from paceline.limits.stores.locked_rows import LockedRows, cell_of, hold_row_of
from paceline.options import check_whole

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_SPINS = 10
"""How often a caller tries again at once: the lock is held for some microseconds."""
_PAUSE_SECONDS = 0.0001
_BATCH = 100
"""Chains that are decided before other processes get the lock."""


class _HostStore:
    """What both forms share: the table, opened when first used, and one try to call it."""

    def __init__(
        self, name: str, *, megabytes: int | None = None, deadline: float | None = None, directory: str | None = None
    ) -> None:
        if sys.platform not in ("linux", "darwin"):
            raise ConfigurationError("store", f"host:// works on Linux and macOS, not on {sys.platform}; use redis://")
        if _NAME.fullmatch(name) is None:
            raise ConfigurationError("store", "host:// needs a name of up to 64 letters, digits, '.', '-' and '_'")
        if megabytes is not None:
            check_whole("megabytes", megabytes)
        folder = directory or ("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp")  # noqa: PTH112
        self.path = f"{folder}/paceline-{os.geteuid()}-{name}"
        self._megabytes = megabytes
        self._deadline = DEFAULT_DEADLINE if deadline is None else deadline
        self._table: HostTable | None = None

    def _try(self, work: Callable[[HostTable, int, Unpack[Ts]], R], *args: *Ts) -> R | Busy:
        table = self._table
        if table is None:
            table = self._table = open_tables.open(self.path, self._megabytes)
        return table.try_run(work, *args)

    def fast_path(self, rule: Rule) -> FastPath:
        """Spends one unit under `rule`. Returns `None`, and charges nothing, if the key is new, or the store does not
        answer at once."""
        spec, plan, size, tag = rule.spec, rule.plan, rule.size, rule.spec.tag
        _, brought_to, room, take, *_ = ARITHMETIC[tag]

        def spend(table: HostTable, now_us: int, digest: tuple[int, int]) -> Decision | None:
            at, state = table.find(digest)
            if not at or state[0] != tag:
                return None
            view = brought_to(spec, state, now_us)
            left, retry_us, reset_us = room(spec, view, now_us, 1)
            if retry_us:
                if stranded(spec, state, now_us):
                    return None
                table.touch(at)
                return Decision((False, left, size, retry_us, reset_us, plan, Reason.DENIED, False, ()))
            view = take(spec, view, now_us, 1)
            left, _, reset_us = room(spec, view, now_us, 1)
            if not table.replace(at, view, now_us + reset_us):
                return None
            return Decision((True, left, size, 0, reset_us, plan, Reason.OK, False, ()))

        def spend_one(key: str) -> Decision | None:
            table = self._table
            if table is None or not table.is_loaded:
                return None
            digest = table.digest(key, plan)
            try:
                for _ in range(_SPINS):
                    result = table.try_run(spend, digest)
                    if not isinstance(result, Busy):
                        return result
                    os.sched_yield()
            except StoreError:
                pass  # the slow path raises it
            return None

        return spend_one

    def _pause_after(self, attempt: int, started: float) -> float:
        """Seconds to wait before the next attempt."""
        if attempt < _SPINS:
            os.sched_yield()
            return 0
        if time.monotonic() - started > self._deadline:
            raise StoreUnavailable(f"another process has locked {self.path} for {self._deadline:g} s; is it stopped?")
        return _PAUSE_SECONDS

    def _close(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            open_tables.close(table)


class HostLimitStore(_HostStore):
    """A `LimitStore` for all processes of one user on this host that give it the same name.

        limiter = Limiter("host://shop", plans=[Plan("gold", "20/minute")])

    Its memory has a fixed size, `megabytes`; unless given, 16 or as many as there is room for. The process that
    creates it decides. When it is full, expired keys are dropped first, then keys that were not used lately.
    """

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        return self._run(_decide, chain, spend, hold, now_us)

    def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        return [decision for batch in _batches(chains) for decision in self._run(_decide_many, batch, now_us)]

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        self._run(_on_rows, chain, None, lambda rows: rows.refund(chain, now_us))

    def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        name = hold_row_of(hold_id, chain)
        result: Settlement = self._run(_on_rows, chain, name, lambda rows: rows.settle(hold_id, chain, actual, now_us))
        return result

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None) -> Settlement:
        name = hold_row_of(hold_id, chain)
        result: Settlement = self._run(_on_rows, chain, name, lambda rows: rows.renew(hold_id, chain, ttl_us, now_us))
        return result

    def reset(self, chain: Sequence[Charge]) -> None:
        self._run(_on_rows, chain, None, lambda rows: rows.reset(chain))

    def close(self) -> None:
        """Unmaps the memory. The counts stay until the host restarts, or the file is deleted."""
        self._close()

    def _run(self, work: Callable[[HostTable, int, Unpack[Ts]], R], *args: *Ts) -> R:
        result = self._try(work, *args)
        if isinstance(result, Busy):
            started, attempt = time.monotonic(), 0
            while isinstance(result, Busy):
                if pause := self._pause_after(attempt, started):
                    time.sleep(pause)
                attempt += 1
                result = self._try(work, *args)
        return result


class AsyncHostLimitStore(_HostStore):
    """`HostLimitStore` for event loops. A decision takes some microseconds; while another process has the lock for
    longer, the loop runs."""

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        return await self._run(_decide, chain, spend, hold, now_us)

    async def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        return [decision for batch in _batches(chains) for decision in await self._run(_decide_many, batch, now_us)]

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        await self._run(_on_rows, chain, None, lambda rows: rows.refund(chain, now_us))

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        name = hold_row_of(hold_id, chain)
        return await self._run(_on_rows, chain, name, lambda rows: rows.settle(hold_id, chain, actual, now_us))

    async def renew(
        self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None
    ) -> Settlement:
        name = hold_row_of(hold_id, chain)
        return await self._run(_on_rows, chain, name, lambda rows: rows.renew(hold_id, chain, ttl_us, now_us))

    async def reset(self, chain: Sequence[Charge]) -> None:
        await self._run(_on_rows, chain, None, lambda rows: rows.reset(chain))

    async def close(self) -> None:
        """Unmaps the memory. The counts stay until the host restarts, or the file is deleted."""
        self._close()

    async def _run(self, work: Callable[[HostTable, int, Unpack[Ts]], R], *args: *Ts) -> R:
        result = self._try(work, *args)
        if isinstance(result, Busy):
            started, attempt = time.monotonic(), 0
            while isinstance(result, Busy):
                if pause := self._pause_after(attempt, started):
                    await asyncio.sleep(pause)
                attempt += 1
                result = self._try(work, *args)
        return result


def host_options(option: str, url: str) -> tuple[str, int | None]:
    """The name and the megabytes of `host://NAME?megabytes=64`."""
    name, _, query = url.removeprefix("host:").removeprefix("//").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    megabytes = options.pop("megabytes", None)
    if options or (megabytes is not None and not re.fullmatch("[1-9][0-9]{0,5}", megabytes, re.ASCII)):
        raise ConfigurationError(option, f"?{query} can't be used; host:// takes ?megabytes=, a whole number above 0")
    return name, None if megabytes is None else int(megabytes)


def _batches(chains: Sequence[Sequence[Charge]]) -> list[Sequence[Sequence[Charge]]]:
    return [chains[first : first + _BATCH] for first in range(0, len(chains), _BATCH)]


def _decide_many(
    table: HostTable, clock_us: int, chains: Sequence[Sequence[Charge]], given_us: int | None
) -> list[Decision]:
    return [_decide(table, clock_us, chain, True, None, given_us) for chain in chains]


def _decide(
    table: HostTable, clock_us: int, chain: Sequence[Charge], spend: bool, hold: Hold | None, given_us: int | None
) -> Decision:
    if hold is not None:
        name = hold_row_of(hold.id, held_part(chain, hold.places))
        return _on_rows(table, clock_us, chain, name, lambda rows: rows.decide(chain, spend, hold, given_us))
    now_us = clock_us if given_us is None else given_us
    digests = [table.digest(key, rule.plan) for key, rule, _ in chain]
    records = [table.find(digest) for digest in digests]
    decision, states = rule_on(chain, [state or None for _, state in records], now_us, spend=spend)
    # After a charge, a state lives until it is as new.
    lives = [state.reset_after_us for state in decision.chain] or [decision.reset_after_us]
    changes = [
        Change(digest, state, now_us + life_us)
        for digest, state, life_us in zip(digests, states, lives, strict=True)
        if state is not None
    ]
    if changes:
        table.write(changes, clock_us)
    elif spend:
        for at, _ in records:  # a denied key is in use, too: evicted, it would be admitted again
            table.touch(at)
    return decision


def _on_rows(
    table: HostTable,
    clock_us: int,
    chain: Sequence[Charge],
    hold: HoldName | None,
    work: Callable[[LockedRows], R],
) -> R:
    """Returns `work(rows)`, and writes the rows that it changed."""
    digests = {cell_of(charge): table.digest(charge.key, charge.rule.plan) for charge in chain}
    states = {cell: state for cell, digest in digests.items() if (state := table.find(digest)[1])}
    holds: dict[HoldName, HoldRecord] = {}
    if hold is not None and (values := table.find(_hold_digest(table, hold))[1]):
        holds[hold] = _hold_of(values)
    rows = LockedRows(states, holds, clock_us)
    result = work(rows)
    changes = [Change(digests[cell], state, expires_us) for cell, (state, expires_us) in rows.state_writes.items()]
    for name, record in rows.hold_writes.items():
        changes.append(Change(_hold_digest(table, name), _hold_values(record), record.expires_us))
    if changes:
        table.write(changes, clock_us)
    return result


def _hold_digest(table: HostTable, name: HoldName) -> tuple[int, int]:
    """No plan's name has an unprintable character, so this is no state's."""
    return table.digest(name.key, f"\n{name.id}")


def _hold_values(record: HoldRecord) -> tuple[int, ...]:
    marks = [number for mark in record.marks for number in (mark.tag, *mark.place, mark.cost)]
    return (record.expires_us, record.settled, *marks)


def _hold_of(values: tuple[int, ...]) -> HoldRecord:
    expires_us, settled, *numbers = values
    marks = zip(*[iter(numbers)] * 4, strict=True)
    return HoldRecord(tuple(Mark(tag, (time, end), cost) for tag, time, end, cost in marks), expires_us, bool(settled))
