"""Compares payments with a statement in one walk over each, in constant memory.

The statement may be in any order, so its lines are kept in a temporary SQLite file, by payment. The payments are read
page by page; lines that belong to no page are looked up at the end.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.clock import Clock, SystemClock
from paceline.durations import from_ms
from paceline_payments.lifecycle import TABLE, PaymentEvent, PaymentStatus
from paceline_payments.model import OWNER, SLOT_PREFIX, PaymentFilter
from paceline_payments.reconciliation.model import (
    BACK,
    BANK,
    EXECUTED_HERE,
    BankStatus,
    BatchLine,
    Difference,
    Kind,
    PaymentRow,
    Reconciliation,
    Return,
    StatementLine,
    StatementSummary,
    batch_of,
    compare,
    count,
    keys_of,
    money,
)

PAGE = 2000
MAY_RETURN = frozenset(row.before for row in TABLE if row.event is PaymentEvent.RETURNED)
"""Statuses of payments that a statement can make RETURNED."""

Report = Callable[[Difference], None]
"""Called for every difference."""
RecordReturns = Callable[[Sequence[Return]], Awaitable[None]]
"""Makes these payments RETURNED."""


class ReconciliationStore(Protocol):
    """Reads payments beside their items."""

    async def rows(self, selection: PaymentFilter, limit: int, after: str | None) -> list[PaymentRow]:
        """A page of payments in order of their ids, past the id `after`."""
        ...

    async def leaked_slots(self, owner: str, prefix: str) -> list[str]:
        """The owner's future slots whose payment does not exist, or ended without using them."""
        ...


async def reconcile(
    store: ReconciliationStore,
    statement: AsyncIterator[list[StatementLine]],
    report: Report,
    selection: PaymentFilter | None = None,
    *,
    summary: StatementSummary | None = None,
    record_returns: RecordReturns | None = None,
    clock: Clock | None = None,
) -> Reconciliation:
    """Compares the payments of a selection with a statement; `report` is called for every difference. Payments that the
    statement shows as returned are passed to `record_returns`. `summary` is what the reader of the statement adds to.

    Raises:
        InvalidInput: The statement can't be read.
    """
    result, now = Reconciliation(), from_ms((clock or SystemClock()).now_us() // 1000)
    selection, summary = selection or PaymentFilter(), summary or StatementSummary()
    with tempfile.TemporaryDirectory(prefix="paceline-statement-") as directory:
        lines = await asyncio.to_thread(_Lines, Path(directory) / "lines.db")
        try:
            async for some in statement:
                await asyncio.to_thread(lines.add, some)
            batches = _Batches(summary.batches)
            after: str | None = None
            while page := await store.rows(selection, PAGE, after):
                after = page[-1].payment_id
                lines_by_id = await asyncio.to_thread(lines.take, page)
                returns: list[Return] = []
                for row in page:
                    line, is_twice = lines_by_id.get(row.payment_id, (None, False))
                    # What came back left before, maybe within a batch.
                    part = batches.line_of(row) if line is None or line.status in BACK else None
                    line = line or part
                    if line is not None and line.status is BankStatus.RETURNED and row.status in MAY_RETURN:
                        returns.append(_return(row, line))
                        row = row._replace(status=PaymentStatus.RETURNED)
                    differences = compare(row, line, now)
                    if is_twice:
                        differences.append(Difference(Kind.DIFFERENT, row.payment_id, "twice", None, "executed twice"))
                    count(result, row, line, differences)
                    for difference in differences:
                        report(difference)
                if returns and record_returns is not None:
                    await record_returns(returns)
                result.returned += len(returns)
            if selection != PaymentFilter():
                await _take_others(store, lines)
            await _compare_rest(lines, result, report, summary)
            for difference in batches.differences():
                result.counts[difference.kind] += 1
                report(difference)
        finally:
            await asyncio.to_thread(lines.close)
    for event_id in await store.leaked_slots(OWNER, SLOT_PREFIX):
        result.counts[Kind.LEAKED_SLOT] += 1
        report(Difference(Kind.LEAKED_SLOT, event_id.removeprefix(SLOT_PREFIX), "slot", event_id, None))
    return result


def _return(row: PaymentRow, line: StatementLine) -> Return:
    return Return(row.payment_id, line.amount_minor, line.currency, line.reason or "returned", row.feed_id)


async def _take_others(store: ReconciliationStore, lines: _Lines) -> None:
    """Takes the lines of payments outside of the selection."""
    after: str | None = None
    while await asyncio.to_thread(lines.rest, 0, 1) and (page := await store.rows(PaymentFilter(), PAGE, after)):
        after = page[-1].payment_id
        await asyncio.to_thread(lines.take, page)


async def _compare_rest(lines: _Lines, result: Reconciliation, report: Report, summary: StatementSummary) -> None:
    """Reports lines of no payment."""
    after = 0
    while rest := await asyncio.to_thread(lines.rest, after, PAGE):
        after = rest[-1][0]
        for _, line in rest:
            if line.status is BankStatus.REJECTED:
                continue
            if not line.is_named:
                summary.others += 1
                continue
            result.counts[Kind.MISSING_HERE] += 1
            shown = f"{line.status} {money(line.amount_minor, line.currency)}"
            report(Difference(Kind.MISSING_HERE, line.payment_id, "payment", None, shown))


class _Batches:
    """Bookings of many payments as one sum, compared with the payments that were executed here."""

    def __init__(self, batches: Iterable[BatchLine]) -> None:
        self._batches: dict[tuple[str, str], BatchLine] = {}
        for batch in batches:
            key = batch.key, batch.currency
            self._batches[key] = _sum(self._batches[key], batch) if key in self._batches else batch
        self._found: dict[tuple[str, str], tuple[int, int]] = {}

    def line_of(self, row: PaymentRow) -> StatementLine | None:
        """The part of its batch that an executed payment is; None if no batch has it."""
        was_executed = row.status in EXECUTED_HERE or row.status is PaymentStatus.RETURNED
        own = batch_of(row.payment_id) if self._batches and was_executed else None
        if own is None or (own, row.currency) not in self._batches:
            return None
        key = own, row.currency
        number, minor = self._found.get(key, (0, 0))
        self._found[key] = number + 1, minor + row.amount_minor
        return StatementLine(row.payment_id, row.amount_minor, row.currency, BankStatus.EXECUTED, None, None)

    def differences(self) -> list[Difference]:
        """Batches whose count or sum is another one here."""
        differences = []
        for key, batch in self._batches.items():
            number, minor = self._found.get(key, (0, 0))
            expected = number if batch.payments is None else batch.payments
            if (number, minor) == (expected, batch.amount_minor):
                continue
            here = f"{number} payments, {money(minor, batch.currency)}" if number else None
            bank = f"{expected} payments, {money(batch.amount_minor, batch.currency)}"
            kind = Kind.DIFFERENT if number else Kind.MISSING_HERE
            differences.append(Difference(kind, batch.name, "batch", here, bank))
        return differences


def _sum(one: BatchLine, other: BatchLine) -> BatchLine:
    """Two bookings of the same payment information."""
    payments = None if one.payments is None or other.payments is None else one.payments + other.payments
    return one._replace(payments=payments, amount_minor=one.amount_minor + other.amount_minor)


class _Lines:
    """A statement's lines by their keys, in a file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=OFF", "synchronous=OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(
            "CREATE TABLE line (number INTEGER PRIMARY KEY, payment_id TEXT, amount INTEGER, currency TEXT,"
            " status TEXT, reference TEXT, executed_at TEXT, reason TEXT, is_named INTEGER,"
            " seen INTEGER DEFAULT 0)"
        )
        self._connection.execute("CREATE TABLE key (key TEXT, line INTEGER, PRIMARY KEY (key, line)) WITHOUT ROWID")

    def add(self, lines: Sequence[StatementLine]) -> None:
        """Keeps lines."""
        self._connection.execute("BEGIN")
        for line in lines:
            number = self._connection.execute(
                "INSERT INTO line VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, 0)", (*line[:-2], line.is_named)
            ).lastrowid
            keys = (line.payment_id,) if line.keys is None else line.keys
            self._connection.executemany("INSERT INTO key VALUES (?, ?)", [(key, number) for key in keys])
        self._connection.execute("COMMIT")

    def take(self, rows: Sequence[PaymentRow]) -> dict[str, tuple[StatementLine, bool]]:
        """The lines of these payments, by their surest key, with what came back and has the bank's reference alone; and
        whether one was executed twice. They are marked as seen."""
        keys = {row.payment_id: keys_of(row) for row in rows}
        numbers, back = self._numbers([key for own in keys.values() for key in own])
        taken: set[int] = set()
        lines: dict[str, tuple[StatementLine, bool]] = {}
        self._connection.execute("BEGIN")
        for payment_id, own in keys.items():
            by_key = next((numbers[key] for key in own if key in numbers), [])
            by_reference = [n for key in own for n in back.get(key, []) if n not in by_key]
            of_payment = [n for n in (*by_key, *by_reference) if n not in taken]
            if of_payment:
                taken.update(of_payment)
                lines[payment_id] = _merged([self._line(number) for number in of_payment])
        self._connection.executemany("UPDATE line SET seen = 1 WHERE number = ?", [(number,) for number in taken])
        self._connection.execute("COMMIT")
        return lines

    def _numbers(self, keys: Sequence[str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """The lines that were not taken, by key; and of these the ones that came back and have no other name."""
        numbers: dict[str, list[int]] = {}
        back: dict[str, list[int]] = {}
        for first in range(0, len(keys), 500):
            some = keys[first : first + 500]
            marks = ",".join("?" * len(some))
            found = self._connection.execute(
                f"SELECT key, line, status, payment_id FROM key JOIN line ON number = line"  # noqa: S608
                f" WHERE key IN ({marks}) AND seen = 0 ORDER BY line",
                some,
            )
            for key, number, status, name in found:
                numbers.setdefault(key, []).append(number)
                if status in BACK and key == f"{BANK}{name}":
                    back.setdefault(key, []).append(number)
        return numbers, back

    def _line(self, number: int) -> StatementLine:
        row = self._connection.execute(f"SELECT {_COLUMNS} FROM line WHERE number = ?", (number,)).fetchone()  # noqa: S608
        return _line(row)

    def rest(self, after: int, limit: int) -> list[tuple[int, StatementLine]]:
        """Lines that were not taken, past a number."""
        rows = self._connection.execute(
            f"SELECT number, {_COLUMNS} FROM line WHERE seen = 0 AND number > ? ORDER BY number LIMIT ?",  # noqa: S608
            (after, limit),
        )
        return [(row[0], _line(row[1:])) for row in rows]

    def close(self) -> None:
        self._connection.close()


_COLUMNS = "payment_id, amount, currency, status, reference, executed_at, reason, is_named"


def _line(row: Sequence[Any]) -> StatementLine:
    payment_id, amount, currency, status, reference, executed_at, reason, is_named = row
    return StatementLine(
        payment_id,
        amount,
        currency,
        BankStatus(status),
        reference,
        executed_at,
        reason,
        is_named=bool(is_named),
    )


def _merged(lines: Sequence[StatementLine]) -> tuple[StatementLine, bool]:
    """One line of several of the same payment, in any order: that it is back if it came back as often as it left,
    else the last that is decided; and whether it was executed twice."""
    executed = [line for line in lines if line.status is BankStatus.EXECUTED]
    back = [line for line in lines if line.status in BACK]
    returned = [line for line in back if line.status is BankStatus.RETURNED]
    stays = [line for line in lines if line.status not in (*BACK, BankStatus.PENDING)]
    is_back = len(back) >= len(executed)
    return ((is_back and (returned or back)) or stays or lines)[-1], len(executed) > 1
