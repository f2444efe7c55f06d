"""The payments of an ISO 20022 pain.001 document (customer credit transfers), and its control figures."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from paceline.errors import InvalidInput
from paceline_payments.amounts import plain_amount
from paceline_payments.feeds.corrections import correctable_line
from paceline_payments.feeds.identity import payment_id_of
from paceline_payments.feeds.model import Control, FeedReject, Figures, checked_sum
from paceline_payments.feeds.staging import MAX_RAW, StagedPayment
from paceline_payments.feeds.versions import root_of
from paceline_payments.instruction import Instruction
from paceline_payments.iso20022.reader import Problem, RecordReader, Values
from paceline_payments.model import Party, Payment
from paceline_payments.parsing import (
    checked_account,
    checked_amount,
    checked_currency,
    checked_iban,
    checked_new_id,
    checked_party_name,
    checked_time,
    other_party,
    with_instruction,
)

_INITIATION = "CstmrCdtTrfInitn"
_BELOW_ROOT = (("GrpHdr",), ("PmtInf",), ("PmtInf", "CdtTrfTxInf"))
_RECORDS = {(*before, *path): path[-1] == "CdtTrfTxInf" for path in _BELOW_ROOT for before in ((_INITIATION,), ())}
"""Italian documents have no element between the root and these."""
_FIGURES = ("NbOfTxs", "CtrlSum")
_EITHER = ("PmtTpInf", "UltmtDbtr", "ChrgBr", "InstrForDbtrAgt")
"""Said for the payment information or for a transaction, not for both."""
_FIELDS = {
    "paymentId": "PmtId",
    "amount": "Amt.InstdAmt",
    "currency": "Amt.InstdAmt.Ccy",
    "executeAt": "ReqdExctnDt",
}
"""A field of a payment → where a pain.001 document has it."""


class Pain001Parser:
    """Takes a document in blocks and collects its transactions; `take` returns them.

    A transaction that the schema does not allow, or that can't be carried, is rejected. A problem anywhere else refuses
    the document. Its own control figures are checked by `finish`, which raises `InvalidInput` if they are wrong.
    """

    def __init__(self) -> None:
        self.message: str | None = None
        self.control = Control()
        self.document: dict[str, str] = {}
        """What the document says of itself."""
        self._payments: list[StagedPayment] = []
        self._rejects: list[FeedReject] = []
        self._rejected_amounts = Decimal(0)
        self._number = 0
        self._own: tuple[int, Decimal] = (0, Decimal(0))
        self._header: Values = {}
        self._information: _Information | None = None
        self._reader = RecordReader(self._root_of, _RECORDS, self._record)

    def feed(self, block: bytes) -> None:
        """Parses a block.

        Raises:
            InvalidInput: It is no pain.001 document, or its schema does not allow it.
        """
        self._reader.feed(block)

    def finish(self) -> None:
        """Ends the document.

        Raises:
            InvalidInput: It is truncated, or no pain.001 document.
        """
        self._reader.finish()

    def take(self) -> tuple[list[StagedPayment], list[FeedReject]]:
        """The transactions since the last call."""
        taken = self._payments, self._rejects
        self._payments, self._rejects = [], []
        return taken

    def add_to(self, figures: Figures) -> None:
        """Adds the amounts of the transactions that were rejected since the last call."""
        figures.other += self._rejected_amounts
        self._rejected_amounts = Decimal(0)

    @property
    def waiting(self) -> int:
        return len(self._payments) + len(self._rejects)

    def _root_of(self, namespace: str, name: str) -> Any:
        root = root_of(namespace, name)
        self.document["MsgNmId"] = namespace.rpartition(":")[2].rpartition("/")[2]
        return root

    def _record(self, path: tuple[str, ...], values: Values, problem: Problem | None) -> None:
        if path[-1] == "GrpHdr":
            self._read_header(values)
        elif path[-1] == "PmtInf":
            self._check_own(values)
            self._information, self._own = None, (0, Decimal(0))
        else:
            if self._information is None:
                self._information = _Information(self._header, self._reader.outer(len(path) - 1))
            self._read_transaction(self._information, values, problem)

    def _read_header(self, values: Values) -> None:
        self._header = {name: value for name, value in values.items() if name not in _FIGURES}
        self.message = values["MsgId"]
        self.control = Control(int(values["NbOfTxs"]), _sum(values.get("CtrlSum"), "GrpHdr.CtrlSum"))
        self.document |= {name: values[name] for name in ("MsgId", "CreDtTm", *_FIGURES) if name in values}

    def _read_transaction(self, information: _Information, values: Values, problem: Problem | None) -> None:
        self._number += 1
        count, total = self._own
        position, amount = count + 1, _readable_amount(values)
        self._own = position, total + amount
        payment_id = payment_id_of(self._header, information.values, values, position)
        try:
            if problem is not None:
                raise InvalidInput(_short(problem.path), problem.words)
            payment = information.payment(payment_id, values)
        except InvalidInput as error:
            self._rejected_amounts += amount
            reason = f"{_FIELDS.get(error.field, error.field.removeprefix('instruction.'))}: {error.problem}"
            raw = correctable_line(payment_id, information.instruction(values))
            self._rejects.append(FeedReject(self._number, reason, payment_id, raw[:MAX_RAW]))
        else:
            self._payments.append(StagedPayment(self._number, None, payment))

    def _check_own(self, values: Values) -> None:
        """The control figures of one PmtInf, where it has them."""
        count, total = self._own
        own_count, own_sum = values.get("NbOfTxs"), _sum(values.get("CtrlSum"), "PmtInf.CtrlSum")
        if own_count is not None and int(own_count) != count:
            raise InvalidInput("PmtInf.NbOfTxs", f"is {own_count}, but there are {count} transactions")
        if own_sum is not None and own_sum != total:
            raise InvalidInput("PmtInf.CtrlSum", f"is {own_sum}, but the amounts add up to {total}")


class _Information:
    """What the transactions of one payment information have in common."""

    def __init__(self, header: Values, values: Values) -> None:
        self.values = {name: value for name, value in values.items() if name not in _FIGURES}
        self._common = header | self.values
        self._payer: Party | None = None

    def instruction(self, transaction: Values) -> Instruction:
        return self._common | transaction

    def payment(self, payment_id: str, transaction: Values) -> Payment:
        """The payment that a transaction asks for.

        Raises:
            InvalidInput: It can't be carried.
        """
        if self.values["PmtMtd"] != "TRF":
            raise InvalidInput("PmtMtd", f"{self.values['PmtMtd']} is no credit transfer; only TRF can be made")
        for name in _EITHER:
            if name in self.values and self.values[name] != transaction.get(name, self.values[name]):
                raise InvalidInput(name, "is said for the payment information and for the transaction; one may")
        amount = transaction["Amt"].get("InstdAmt")
        if amount is None:
            raise InvalidInput("Amt.EqvtAmt", "can't be carried; give the amount to be paid as InstdAmt")
        currency = checked_currency(amount["Ccy"])
        value = plain_amount(amount["amt"], currency)
        if self._payer is None:
            self._payer = _party(self.values, "Dbtr")
        payee = other_party(self._payer, _party(transaction, "Cdtr"), "CdtrAcct.Id")
        return with_instruction(
            Payment(
                checked_new_id(payment_id),
                checked_amount(value, currency),
                currency,
                self._payer,
                payee,
                checked_time(_instant(self.values["ReqdExctnDt"])),
            ),
            self.instruction(transaction | {"Amt": {"InstdAmt": {"Ccy": currency, "amt": value}}}),
        )


def _party(values: Mapping[str, Any], role: str) -> Party:
    name = checked_party_name(values.get(role, {}).get("Nm"), f"{role}.Nm")
    account = values.get(f"{role}Acct")
    if account is None or "Id" not in account:
        raise InvalidInput(f"{role}Acct.Id", "is required: a transfer goes from one account to another")
    if "IBAN" in account["Id"]:
        return Party(name, checked_iban(account["Id"]["IBAN"], f"{role}Acct.Id.IBAN"))
    return Party(name, "", checked_account(account["Id"]["Othr"]["Id"], f"{role}Acct.Id.Othr.Id"))


def _short(path: str) -> str:
    """A path from the transaction on."""
    return path.partition("CdtTrfTxInf.")[2] or path


def _sum(text: str | None, field: str) -> Decimal | None:
    if text is None:
        return None
    if (total := Decimal(text)) < 0:
        raise InvalidInput(field, "is less than zero")
    return total


def _instant(date: str | Mapping[str, str]) -> str:
    """A date is its first instant, by default in UTC; a time without a zone is one in UTC."""
    if not isinstance(date, str):
        date = date.get("Dt") or date["DtTm"]
    day, _, time = date.partition("T")
    zone = "" if date.endswith("Z") or "+" in date or (time or day[10:]).count("-") else "Z"
    return f"{date}{zone}" if time else f"{day[:10]}T00:00:00{day[10:]}{zone}"


def _readable_amount(values: Values) -> Decimal:
    amount = values.get("Amt")
    amount = amount.get("InstdAmt") if isinstance(amount, dict) else None
    text = amount.get("amt") if isinstance(amount, dict) else None
    try:
        return checked_sum(text) if isinstance(text, str) and "e" not in text.lower() else Decimal(0)
    except InvalidInput:
        return Decimal(0)
