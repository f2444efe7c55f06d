"""The downstream's statement as a stream of lines: CSV, or ISO 20022 camt.053 and camt.054."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator
from enum import StrEnum

from paceline.errors import InvalidInput
from paceline_payments.feed import LineCutter
from paceline_payments.parsing import checked_amount, checked_currency
from paceline_payments.reconciliation.camt import CamtStatement
from paceline_payments.reconciliation.model import BankStatus, StatementLine, StatementSummary

COLUMNS = ("paymentId", "amount", "currency", "status", "reference", "executedAt")
BLOCK_LINES = 1000
STATUSES = {
    **{status.value: status for status in BankStatus},
    "BOOK": BankStatus.EXECUTED,
    "BOOKED": BankStatus.EXECUTED,
    "PDNG": BankStatus.PENDING,
    "FAILED": BankStatus.REJECTED,
}


class StatementFormat(StrEnum):
    CSV = "csv"
    CAMT053 = "camt053"


async def statement_lines(
    blocks: AsyncIterator[bytes], kind: StatementFormat, summary: StatementSummary | None = None
) -> AsyncIterator[list[StatementLine]]:
    """The lines of a statement, some at a time; what else it says is added to the summary.

    Raises:
        InvalidInput: It is no statement of this kind; the message names the line or the entry.
    """
    summary = StatementSummary() if summary is None else summary
    reader: _CsvStatement | CamtStatement
    reader = _CsvStatement() if kind is StatementFormat.CSV else CamtStatement(summary)
    async for block in blocks:
        lines = await asyncio.to_thread(reader.feed, block)
        if lines:
            yield lines
    lines = await asyncio.to_thread(reader.finish)
    if lines:
        yield lines


class _CsvStatement:
    def __init__(self) -> None:
        self._cutter = LineCutter()

    def feed(self, block: bytes) -> list[StatementLine]:
        return self._read(self._cutter.feed(block))

    def finish(self) -> list[StatementLine]:
        lines = self._read(self._cutter.finish())
        if not self._cutter.number:
            raise InvalidInput("line 1", f"must name the columns: {','.join(COLUMNS)}")
        return lines

    def _read(self, raw_lines: list) -> list[StatementLine]:  # type: ignore[type-arg]
        lines = []
        for number, raw, _ in raw_lines:
            if raw is None:
                raise InvalidInput(f"line {number}", "is too long")
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                fields = next(csv.reader([text], strict=True), [])
            except (UnicodeDecodeError, csv.Error) as error:
                raise InvalidInput(f"line {number}", f"is not CSV in UTF-8: {error}") from None
            if number == 1:
                if tuple(name.strip() for name in fields) != COLUMNS:
                    raise InvalidInput("line 1", f"must name the columns: {','.join(COLUMNS)}")
            elif fields:
                lines.append(_line(fields, f"line {number}"))
        return lines


def _line(fields: list[str], place: str) -> StatementLine:
    if len(fields) != len(COLUMNS):
        raise InvalidInput(place, f"has {len(fields)} fields instead of {len(COLUMNS)}: {','.join(COLUMNS)}")
    payment_id, amount, currency, status, reference, executed_at = (value.strip() for value in fields)
    try:
        currency = checked_currency(currency)
        minor = int(checked_amount(amount, currency).replace(".", ""))
    except InvalidInput as error:
        raise InvalidInput(f"{place}, {error.field}", error.problem) from None
    known = STATUSES.get(status.upper())
    if known is None:
        raise InvalidInput(f"{place}, status", f"{status[:40]!r} is unknown; use one of {', '.join(BankStatus)}")
    if not payment_id:
        raise InvalidInput(f"{place}, paymentId", "is required")
    return StatementLine(payment_id, minor, currency, known, reference or None, executed_at or None)
