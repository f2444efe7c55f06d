"""The payments of an ISO 20022 pain.001 document (customer credit transfers), and its control figures."""

from __future__ import annotations

from decimal import Decimal

from paceline.errors import InvalidInput
from paceline_payments.feeds.model import Control, FeedReject, Figures, checked_sum
from paceline_payments.feeds.staging import StagedPayment, csv_fields
from paceline_payments.iso20022 import NOT_PROVIDED, DocumentStream
from paceline_payments.parsing import payment_of_fields

NAMESPACE = "urn:iso:std:iso:20022:tech:xsd:pain.001.001."

_TRANSACTION = "CdtTrfTxInf"
_INFORMATION = "PmtInf"
_HEADER = "GrpHdr"
_ROOT = "CstmrCdtTrfInitn"
_TEXTS = {
    (_HEADER, "MsgId"): "message",
    (_HEADER, "NbOfTxs"): "count",
    (_HEADER, "CtrlSum"): "sum",
    (_INFORMATION, "NbOfTxs"): "own_count",
    (_INFORMATION, "CtrlSum"): "own_sum",
    (_INFORMATION, "ReqdExctnDt"): "date",
    ("ReqdExctnDt", "Dt"): "date",
    ("ReqdExctnDt", "DtTm"): "date",
    ("Dbtr", "Nm"): "payer",
    ("PmtId", "InstrId"): "instruction",
    ("PmtId", "EndToEndId"): "end_to_end",
    ("Amt", "InstdAmt"): "amount",
    ("Cdtr", "Nm"): "payee",
    ("DbtrAcct", "IBAN"): "payer_iban",
    ("CdtrAcct", "IBAN"): "payee_iban",
}
"""(parent, element) → what its text is."""
_OF_TRANSACTION = ("instruction", "end_to_end", "amount", "currency", "payee", "payee_iban")
_FIELDS = {
    "paymentId": "PmtId.EndToEndId",
    "amount": "Amt.InstdAmt",
    "currency": "Amt.InstdAmt.Ccy",
    "payerName": "Dbtr.Nm",
    "payerIban": "DbtrAcct.Id.IBAN",
    "payeeName": "Cdtr.Nm",
    "payeeIban": "CdtrAcct.Id.IBAN",
    "executeAt": "ReqdExctnDt",
}
"""A field of a payment → where a pain.001 document has it."""


class Pain001Parser:
    """Takes a document in blocks and collects its transactions; `take` returns them.

    The document's own control figures are checked by `finish`, which raises `InvalidInput` if they are wrong.
    """

    def __init__(self) -> None:
        self.message: str | None = None
        self.control = Control()
        self._payments: list[StagedPayment] = []
        self._rejects: list[FeedReject] = []
        self._number = 0
        self._own: tuple[int, Decimal] = (0, Decimal(0))
        self._seen_root = False
        self._document = DocumentStream(NAMESPACE, _TEXTS, start=self._start, end=self._end)
        self._values = self._document.values

    def feed(self, block: bytes) -> None:
        """Parses a block.

        Raises:
            InvalidInput: It is no pain.001 document.
        """
        self._document.feed(block)

    def finish(self) -> None:
        """Ends the document.

        Raises:
            InvalidInput: It is truncated, or no pain.001 document.
        """
        self._document.finish()
        if not self._seen_root:
            raise InvalidInput("document", f"is no pain.001: it has no {_ROOT}")

    def take(self) -> tuple[list[StagedPayment], list[FeedReject]]:
        """The transactions since the last call."""
        taken = self._payments, self._rejects
        self._payments, self._rejects = [], []
        return taken

    def add_to(self, figures: Figures, rejects: list[FeedReject]) -> None:
        """Adds the amounts of rejected transactions to the figures."""
        for reject in rejects:
            figures.other += _readable(reject.raw.split(",")[1]) if reject.raw.count(",") else Decimal(0)

    @property
    def waiting(self) -> int:
        return len(self._payments) + len(self._rejects)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == _TRANSACTION:
            for key in _OF_TRANSACTION:
                self._values.pop(key, None)
        elif name == _INFORMATION:
            self._values.clear()
            self._own = (0, Decimal(0))
        elif name == _ROOT:
            self._seen_root = True
        elif name == "InstdAmt":
            self._values["currency"] = attributes.get("Ccy", "")

    def _end(self, name: str) -> None:
        if name == _TRANSACTION:
            self._transaction()
        elif name == _HEADER:
            self._header()
        elif name == _INFORMATION:
            self._check_own()

    def _header(self) -> None:
        values = self._values
        self.message = values.get("message")
        count = values.get("count", "")
        if not (count.isascii() and count.isdigit() and len(count) <= 15):
            raise InvalidInput("GrpHdr.NbOfTxs", "is required, and must be a whole number")
        total = values.get("sum")
        self.control = Control(int(count), None if total is None else checked_sum(total))

    def _transaction(self) -> None:
        self._number += 1
        values = self._values
        end_to_end = values.get("end_to_end", "")
        if end_to_end in ("", NOT_PROVIDED):
            end_to_end = values.get("instruction", "")
        amount = values.get("amount", "")
        fields = (
            end_to_end,
            amount,
            values.get("currency", ""),
            values.get("payer", ""),
            values.get("payer_iban", ""),
            values.get("payee", ""),
            values.get("payee_iban", ""),
            _instant(values.get("date", "")),
        )
        count, total = self._own
        self._own = count + 1, total + _readable(amount)
        try:
            self._payments.append(StagedPayment(self._number, None, payment_of_fields(fields)))
        except InvalidInput as error:
            reason = f"{_FIELDS.get(error.field, error.field)}: {error.problem}"
            self._rejects.append(FeedReject(self._number, reason, end_to_end or None, csv_fields(fields)))

    def _check_own(self) -> None:
        """The control figures of one PmtInf, where it has them."""
        count, total = self._own
        own_count, own_sum = self._values.get("own_count"), self._values.get("own_sum")
        if own_count is not None and own_count != str(count):
            raise InvalidInput("PmtInf.NbOfTxs", f"is {own_count}, but there are {count} transactions")
        if own_sum is not None and checked_sum(own_sum) != total:
            raise InvalidInput("PmtInf.CtrlSum", f"is {own_sum}, but the amounts add up to {total}")


def _instant(date: str) -> str:
    """A date is its first instant in UTC; a time without a zone is one in UTC."""
    if len(date) == 10:
        return f"{date}T00:00:00Z"
    if "T" in date and not date.endswith("Z") and "+" not in date and date.count("-") < 3:
        return f"{date}Z"
    return date


def _readable(amount: str) -> Decimal:
    try:
        return checked_sum(amount)
    except InvalidInput:
        return Decimal(0)
