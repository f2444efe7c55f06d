"""Compares payments with a statement in one walk over each, in constant memory.

The statement may be in any order, so its lines are kept in a temporary SQLite file, by payment. The payments are read
page by page; lines that belong to no page are looked up at the end.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

from paceline.clock import Clock, SystemClock
from paceline.durations import from_ms
from paceline_payments.model import OWNER, SLOT_PREFIX, PaymentFilter
from paceline_payments.reconciliation.model import (
    BankStatus,
    Difference,
    Kind,
    PaymentRow,
    Reconciliation,
    StatementLine,
    compare,
    count,
    money,
)

PAGE = 2000

Report = Callable[[Difference], None]
"""Called for every difference."""


class ReconciliationStore(Protocol):
    """Reads payments beside their items."""

    async def rows(self, selection: PaymentFilter, limit: int, after: str | None) -> list[PaymentRow]:
        """A page of payments in order of their ids, past the id `after`."""
        ...

    async def rows_of(self, payment_ids: Sequence[str]) -> list[PaymentRow]:
        """Those of these payments that exist."""
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
    clock: Clock | None = None,
) -> Reconciliation:
    """Compares the payments of a selection with a statement; `report` is called for every difference.

    Raises:
        InvalidInput: The statement can't be read.
    """
    result, now = Reconciliation(), from_ms((clock or SystemClock()).now_us() // 1000)
    selection = selection or PaymentFilter()
    with tempfile.TemporaryDirectory(prefix="paceline-statement-") as directory:
        lines = await asyncio.to_thread(_Lines, Path(directory) / "lines.db")
        try:
            async for some in statement:
                for difference in await asyncio.to_thread(lines.add, some):
                    result.counts[difference.kind] += 1
                    report(difference)
            after: str | None = None
            while page := await store.rows(selection, PAGE, after):
                after = page[-1].payment_id
                lines_by_id = await asyncio.to_thread(lines.take, [row.payment_id for row in page])
                for row in page:
                    line = lines_by_id.get(row.payment_id)
                    differences = compare(row, line, now)
                    count(result, row, line, differences)
                    for difference in differences:
                        report(difference)
            await _compare_rest(store, lines, result, report, selection)
        finally:
            await asyncio.to_thread(lines.close)
    for event_id in await store.leaked_slots(OWNER, SLOT_PREFIX):
        result.counts[Kind.LEAKED_SLOT] += 1
        report(Difference(Kind.LEAKED_SLOT, event_id.removeprefix(SLOT_PREFIX), "slot", event_id, None))
    return result


async def _compare_rest(
    store: ReconciliationStore, lines: _Lines, result: Reconciliation, report: Report, selection: PaymentFilter
) -> None:
    """Compares lines of no payment in the selection. Those of other payments are skipped."""
    after = ""
    while rest := await asyncio.to_thread(lines.rest, after, PAGE):
        after = rest[-1].payment_id
        known = set()
        if selection != PaymentFilter():
            known = {row.payment_id for row in await store.rows_of([line.payment_id for line in rest])}
        for line in rest:
            if line.payment_id not in known and line.status is not BankStatus.REJECTED:
                result.counts[Kind.MISSING_HERE] += 1
                shown = f"{line.status} {money(line.amount_minor, line.currency)}"
                report(Difference(Kind.MISSING_HERE, line.payment_id, "payment", None, shown))


class _Lines:
    """A statement's lines by payment, in a file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=OFF", "synchronous=OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(
            "CREATE TABLE line (payment_id TEXT PRIMARY KEY, amount INTEGER, currency TEXT, status TEXT,"
            " reference TEXT, executed_at TEXT, seen INTEGER DEFAULT 0) WITHOUT ROWID"
        )

    def add(self, lines: Sequence[StatementLine]) -> list[Difference]:
        """Keeps lines; a second line of the same payment is a difference, unless it is the first one's end."""
        differences = []
        self._connection.execute("BEGIN")
        for line in lines:
            kept = self._connection.execute(
                "INSERT INTO line VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING", line
            )
            if kept.rowcount != 1:
                (status,) = self._connection.execute(
                    "SELECT status FROM line WHERE payment_id = ?", (line.payment_id,)
                ).fetchone()
                if status == BankStatus.EXECUTED and line.status is BankStatus.EXECUTED:
                    differences.append(Difference(Kind.DIFFERENT, line.payment_id, "twice", None, "executed twice"))
                else:
                    self._connection.execute(
                        "UPDATE line SET status = ? WHERE payment_id = ?", (line.status, line.payment_id)
                    )
        self._connection.execute("COMMIT")
        return differences

    def take(self, payment_ids: Sequence[str]) -> dict[str, StatementLine]:
        """The lines of these payments, which are marked as seen."""
        lines = {}
        self._connection.execute("BEGIN")
        for first in range(0, len(payment_ids), 500):
            some = payment_ids[first : first + 500]
            marks = ",".join("?" * len(some))
            rows = self._connection.execute(
                f"SELECT payment_id, amount, currency, status, reference, executed_at FROM line"  # noqa: S608
                f" WHERE payment_id IN ({marks})",
                some,
            ).fetchall()
            for row in rows:
                lines[row[0]] = StatementLine(row[0], row[1], row[2], BankStatus(row[3]), row[4], row[5])
        self._connection.executemany(
            "UPDATE line SET seen = 1 WHERE payment_id = ?", [(payment_id,) for payment_id in lines]
        )
        self._connection.execute("COMMIT")
        return lines

    def rest(self, after: str, limit: int) -> list[StatementLine]:
        """Lines that were not taken, in order of their payments."""
        rows = self._connection.execute(
            "SELECT payment_id, amount, currency, status, reference, executed_at FROM line"
            " WHERE seen = 0 AND payment_id > ? ORDER BY payment_id LIMIT ?",
            (after, limit),
        )
        return [StatementLine(row[0], row[1], row[2], BankStatus(row[3]), row[4], row[5]) for row in rows]

    def close(self) -> None:
        self._connection.close()
