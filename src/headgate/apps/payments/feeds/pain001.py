"""ISO 20022 pain.001 (customer credit transfers) as a stream: constant memory, no document tree.

A document type declaration is refused, so there are no entities to expand and nothing to fetch. Depth, the length of a
text and the length of a tag have bounds.
"""

from __future__ import annotations

from decimal import Decimal
from xml.parsers import expat

from headgate.apps.payments.feeds.model import Control, FeedReject, Figures, checked_sum
from headgate.apps.payments.feeds.staging import StagedPayment, csv_fields
from headgate.apps.payments.parsing import payment_of_fields
from headgate.errors import InvalidInput

DEEPEST = 40
LONGEST_TEXT = 1000
LONGEST_TOKEN = 1024 * 1024
"""Bytes of one tag: expat keeps a tag whole until it ends."""
NAMESPACE = "urn:iso:std:iso:20022:tech:xsd:pain.001.001."
NOT_PROVIDED = "NOTPROVIDED"

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
}
"""(parent, element) → what its text is. The two accounts share one name and are told apart by where they stand."""
_ACCOUNTS = {"DbtrAcct": "payer_iban", "CdtrAcct": "payee_iban"}
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
    """Takes a document in blocks and collects its transactions; `take` hands them over.

    The document's own control figures are checked by `finish`, which raises `InvalidInput` if they are wrong.
    """

    def __init__(self) -> None:
        self.message: str | None = None
        self.control = Control()
        self._payments: list[StagedPayment] = []
        self._rejects: list[FeedReject] = []
        self._number = 0
        self._path: list[str] = []
        self._values: dict[str, str] = {}
        self._own: tuple[int, Decimal] = (0, Decimal(0))
        self._seen_root = False
        self._text: list[str] = []
        self._length = 0
        self._given = 0
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = refuse_doctype
        self._expat.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def feed(self, block: bytes) -> None:
        """Parses a block.

        Raises:
            InvalidInput: It is no pain.001 document.
        """
        self._given += len(block)
        self._parse(block, False)
        if self._given - self._expat.CurrentByteIndex > LONGEST_TOKEN + len(block):
            raise InvalidInput("document", f"has a tag or text of more than {LONGEST_TOKEN} bytes")

    def finish(self) -> None:
        """The document ended.

        Raises:
            InvalidInput: It broke off, or is no pain.001 document.
        """
        self._parse(b"", True)
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

    def _parse(self, block: bytes, last: bool) -> None:
        try:
            self._expat.Parse(block, last)
        except expat.ExpatError as error:
            line, problem = error.lineno, expat.ErrorString(error.code)
            raise InvalidInput("document", f"is not well-formed XML: line {line}: {problem}") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        path = self._path
        if not path:
            _check_root(name, attributes)
        elif len(path) >= DEEPEST:
            raise InvalidInput("document", f"is nested deeper than {DEEPEST} elements")
        path.append(name)
        if name == _TRANSACTION:
            values = self._values
            for key in ("instruction", "end_to_end", "amount", "currency", "payee", "payee_iban"):
                values.pop(key, None)
        elif name == _INFORMATION:
            self._values.clear()
            self._own = (0, Decimal(0))
        elif name == _ROOT:
            self._seen_root = True
        elif name == "InstdAmt":
            self._values["currency"] = attributes.get("Ccy", "")
        if name == "IBAN" or (len(path) > 1 and (path[-2], name) in _TEXTS):
            self._text, self._length = [], 0
            self._expat.CharacterDataHandler = self._collect

    def _collect(self, text: str) -> None:
        self._length += len(text)
        if self._length > LONGEST_TEXT:
            raise InvalidInput("document", f"has a text of more than {LONGEST_TEXT} characters")
        self._text.append(text)

    def _end(self, _name: str) -> None:
        path = self._path
        name = path.pop()
        if self._expat.CharacterDataHandler is not None:
            self._expat.CharacterDataHandler = None
            parent = path[-1] if path else ""
            key = _ACCOUNTS.get(path[-2]) if name == "IBAN" and len(path) > 1 else _TEXTS.get((parent, name))
            text = "".join(self._text).strip()
            if key is not None and text:
                self._values[key] = text
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


def _check_root(name: str, attributes: dict[str, str]) -> None:
    space = next((value for key, value in attributes.items() if key == "xmlns" or key.startswith("xmlns:")), "")
    if name != "Document" or not any(value.startswith(NAMESPACE) for value in attributes.values()):
        shown = f"{name} of {space}" if space else name
        raise InvalidInput("document", f"must be a Document of {NAMESPACE}…, not {shown[:200]}")


def refuse_doctype(*_: object) -> None:
    """expat calls this for a document type declaration: entities are never expanded, nothing is fetched."""
    raise InvalidInput("document", "has a document type declaration, which is not allowed: it could define entities")


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
