"""The downstream's statement as a stream of lines: CSV or ISO 20022 camt.053."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator
from enum import StrEnum

from paceline.errors import InvalidInput
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.feed import LineCutter
from paceline_payments.iso20022 import NOT_PROVIDED, DocumentStream
from paceline_payments.parsing import checked_amount, checked_currency
from paceline_payments.reconciliation.model import BankStatus, StatementLine

COLUMNS = ("paymentId", "amount", "currency", "status", "reference", "executedAt")
NAMESPACE = "urn:iso:std:iso:20022:tech:xsd:camt.053.001."
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


async def statement_lines(blocks: AsyncIterator[bytes], kind: StatementFormat) -> AsyncIterator[list[StatementLine]]:
    """The lines of a statement, some at a time.

    Raises:
        InvalidInput: It is no statement of this kind; the message names the line or the entry.
    """
    reader: _CsvStatement | _CamtStatement = _CsvStatement() if kind is StatementFormat.CSV else _CamtStatement()
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


_TEXTS = {
    ("Ntry", "Sts"): "status",
    ("Sts", "Cd"): "status",
    ("Ntry", "RvslInd"): "reversal",
    ("Ntry", "AcctSvcrRef"): "entry_reference",
    ("Ntry", "Amt"): "entry_amount",
    ("BookgDt", "Dt"): "booked",
    ("BookgDt", "DtTm"): "booked",
    ("Refs", "EndToEndId"): "end_to_end",
    ("Refs", "AcctSvcrRef"): "reference",
    ("TxDtls", "Amt"): "amount",
    ("TxAmt", "Amt"): "amount",
}
_OF_TRANSACTION = ("end_to_end", "reference", "amount", "currency")


class _CamtStatement:
    """camt.053: each transaction of a booked entry is a line, by its EndToEndId."""

    def __init__(self) -> None:
        self._lines: list[StatementLine] = []
        self._entries = 0
        self._details = False
        self._document = DocumentStream(NAMESPACE, _TEXTS, start=self._start, end=self._end)
        self._values = self._document.values

    def feed(self, block: bytes) -> list[StatementLine]:
        self._document.feed(block)
        return self._take()

    def finish(self) -> list[StatementLine]:
        self._document.finish()
        return self._take()

    def _take(self) -> list[StatementLine]:
        lines, self._lines = self._lines, []
        return lines

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "Ntry":
            self._entries += 1
            self._details = False
            self._values.clear()
        elif name == "TxDtls":
            self._details = True
            for key in _OF_TRANSACTION:
                self._values.pop(key, None)
        elif name == "Amt" and (self._document.parent, name) in _TEXTS:
            key = "entry_currency" if self._document.parent == "Ntry" else "currency"
            self._values[key] = attributes.get("Ccy", "")

    def _end(self, name: str) -> None:
        if name == "TxDtls" or (name == "Ntry" and not self._details):
            self._transaction()

    def _transaction(self) -> None:
        values = self._values
        payment_id = values.get("end_to_end", "")
        if payment_id in ("", NOT_PROVIDED):
            return  # not one of ours: fees, interest, cash
        status = values.get("status", "BOOK")
        if values.get("reversal") == "true":
            status = BankStatus.REVERSED
        amount = values.get("amount") or values.get("entry_amount", "")
        currency = values.get("currency") or values.get("entry_currency", "")
        amount = _trimmed(amount, currency)
        reference = values.get("reference") or values.get("entry_reference", "")
        fields = [payment_id, amount, currency, status, reference, values.get("booked", "")]
        self._lines.append(_line(fields, f"entry {self._entries}"))


def _trimmed(amount: str, currency: str) -> str:
    """The amount with the currency's decimals: banks may write 12.30000 for 12.30."""
    whole, point, fraction = amount.partition(".")
    digits = MINOR_UNITS.get(currency, 2)
    if point and len(fraction) > digits and not fraction[digits:].strip("0"):
        return f"{whole}.{fraction[:digits]}" if digits else whole
    return amount
