"""Statements and notifications of a bank: camt.053 and camt.054, of any version.

Each transaction of an entry is a line. A credit that says what it returns is a RETURNED payment. A booking of many
payments as one sum is a batch, unless its transactions follow. Everything else is the bank's own: charges, interest,
incoming money, and what was returned to others.
"""

from __future__ import annotations

from paceline.errors import InvalidInput
from paceline_payments.amounts import plain_amount
from paceline_payments.feeds.identity import file_key
from paceline_payments.iso20022 import NOT_PROVIDED
from paceline_payments.iso20022.reader import Problem, RecordReader, Root, Values
from paceline_payments.iso20022.schema import lax
from paceline_payments.parsing import checked_amount, checked_currency
from paceline_payments.reconciliation.model import (
    BANK,
    FILE,
    BankStatus,
    BatchLine,
    StatementInfo,
    StatementLine,
    StatementSummary,
)

_ISO = "urn:iso:std:iso:20022:tech:xsd:"
_FORMS = {"camt.053.001.": ("BkToCstmrStmt", "Stmt"), "camt.054.001.": ("BkToCstmrDbtCdtNtfctn", "Ntfctn")}
_STATUSES = {"BOOK": BankStatus.EXECUTED, "PDNG": BankStatus.PENDING}

_CHARGES = frozenset({"CHRG", "COMM", "COMT", "FEES"})
"""Sub-families of what the bank takes for a payment, under the payment's own ids."""

_CODE = {"Cd": None, "Prtry": None}
_FAMILY = {"Domn": {"Fmly": {"SubFmlyCd": None}}}
_DATE = {"Dt": None, "DtTm": None}
_TRANSACTION = {
    "Refs": dict.fromkeys(("MsgId", "AcctSvcrRef", "PmtInfId", "InstrId", "EndToEndId", "UETR", "TxId")),
    "Amt@Ccy": None,
    "CdtDbtInd": None,
    "AmtDtls": {"InstdAmt": {"Amt@Ccy": None}, "TxAmt": {"Amt@Ccy": None}},
    "BkTxCd": _FAMILY,
    "RtrInf": {"Rsn": _CODE, "AddtlInf*": None},
}
_ENTRY = {
    "Amt@Ccy": None,
    "CdtDbtInd": None,
    "RvslInd": None,
    "Sts": _CODE,
    "BookgDt": _DATE,
    "AcctSvcrRef": None,
    "BkTxCd": _FAMILY,
    "NtryDtls": {
        "Btch": {"MsgId": None, "PmtInfId": None, "NbOfTxs": None, "TtlAmt@Ccy": None},
        "TxDtls*": _TRANSACTION,
    },
}
_STATEMENT = {
    "Id": None,
    "FrToDt": {"FrDtTm": None, "ToDtTm": None},
    "Acct": {"Id": {"IBAN": None, "Othr": {"Id": None}}},
    "Ntry*": _ENTRY,
}
_RECORDS = {
    (*outer, *path): False
    for outer in _FORMS.values()
    for path in ((), ("Ntry",), ("Ntry", "NtryDtls"), ("Ntry", "NtryDtls", "TxDtls"))
}
_TYPES = {form: lax("Document", {outer: {f"{statement}*": _STATEMENT}}) for form, (outer, statement) in _FORMS.items()}


class CamtStatement:
    """Takes a document in blocks; returns its lines, and adds the rest to the summary."""

    def __init__(self, summary: StatementSummary) -> None:
        self._summary = summary
        self._lines: list[StatementLine] = []
        self._entries = 0
        self._is_read = False
        """Whether details of the current entry were read."""
        self._has_parts = False
        """Whether the current details have transactions."""
        self._reader = RecordReader(_root_of, _RECORDS, self._record)

    def feed(self, block: bytes) -> list[StatementLine]:
        """The lines that end in this block.

        Raises:
            InvalidInput: It is no such document; the message names the entry.
        """
        self._reader.feed(block)
        return self._take()

    def finish(self) -> list[StatementLine]:
        """The rest of the lines."""
        self._reader.finish()
        return self._take()

    def _take(self) -> list[StatementLine]:
        lines, self._lines = self._lines, []
        return lines

    def _record(self, path: tuple[str, ...], values: Values, _problem: Problem | None) -> None:
        if path[-1] == "TxDtls":
            self._is_read = self._has_parts = True
            self._read_transaction(self._reader.outer(len(path) - 2), values)
        elif path[-1] == "NtryDtls":
            if not self._has_parts and self._read_batch(self._reader.outer(len(path) - 1), _part(values, "Btch")):
                self._is_read = True
            self._has_parts = False
        elif path[-1] == "Ntry":
            if not self._is_read:
                self._read_transaction(values, {})
            self._entries += 1
            self._is_read = False
        else:
            self._read_statement(values)

    def _read_statement(self, values: Values) -> None:
        account, period = _part(values, "Acct", "Id"), _part(values, "FrToDt")
        number = account.get("IBAN") or _part(account, "Othr").get("Id")
        info = StatementInfo(values.get("Id"), number, period.get("FrDtTm"), period.get("ToDtTm"))
        self._summary.statements.append(info)

    def _read_batch(self, entry: Values, batch: Values) -> bool:
        if "PmtInfId" not in batch or _status(entry, {}) is not BankStatus.EXECUTED:
            return False
        currency, minor = self._money(batch.get("TtlAmt") or entry.get("Amt"))
        count = batch.get("NbOfTxs", "")
        key = file_key(batch.get("MsgId", ""), batch["PmtInfId"])
        number = int(count) if count.isascii() and count.isdigit() and len(count) <= 15 else None
        self._summary.batches.append(BatchLine(key, batch["PmtInfId"], number, minor, currency))
        return True

    def _read_transaction(self, entry: Values, details: Values) -> None:
        refs = {name: text for name, text in _part(details, "Refs").items() if text != NOT_PROVIDED}
        status = _status(entry, details)
        # The entry's own reference is that of its only transaction; of several, nobody knows whose.
        reference = refs.get("AcctSvcrRef") or (None if refs else entry.get("AcctSvcrRef"))
        names = [refs[name] for name in ("UETR", "InstrId", "EndToEndId", "TxId") if name in refs]
        is_named = bool(names) or status is BankStatus.RETURNED
        if status is None or not (is_named or reference):
            self._summary.others += 1
            return
        keys = [*names, *(f"{BANK}{text}" for text in dict.fromkeys((reference, refs.get("TxId"))) if text)]
        if all(name in refs for name in ("MsgId", "PmtInfId", "InstrId")):
            keys.append(f"{FILE}{file_key(refs['MsgId'], refs['PmtInfId'], refs['InstrId'])}")
        instructed = _part(details, "AmtDtls", "InstdAmt").get("Amt")
        moved = details.get("Amt") or _part(details, "AmtDtls", "TxAmt").get("Amt")
        if status is BankStatus.RETURNED:
            instructed = None  # what came back counts, which is less if a bank on the way took its charge
        currency, minor = self._money(instructed or moved or entry.get("Amt"))
        booked = _part(entry, "BookgDt")
        self._lines.append(
            StatementLine(
                names[0] if names else reference or f"entry {self._entries + 1}",
                minor,
                currency,
                status,
                reference,
                booked.get("Dt") or booked.get("DtTm"),
                _reason(_part(details, "RtrInf")) if status is BankStatus.RETURNED else None,
                tuple(dict.fromkeys(keys)),
                is_named,
            )
        )

    def _money(self, amount: object) -> tuple[str, int]:
        place = f"entry {self._entries + 1}"
        if not isinstance(amount, dict) or "amt" not in amount:
            raise InvalidInput(f"{place}, amount", "has no amount with a currency")
        try:
            currency = checked_currency(amount["Ccy"])
            return currency, int(checked_amount(plain_amount(amount["amt"], currency), currency).replace(".", ""))
        except InvalidInput as error:
            raise InvalidInput(f"{place}, {error.field}", error.problem) from None


def _root_of(namespace: str, name: str) -> Root:
    for form, kind in _TYPES.items():
        if name == "Document" and namespace.startswith(_ISO + form):
            return Root(namespace, name, kind)
    shown = f"{name} of {namespace}" if namespace else name
    raise InvalidInput("document", f"must be a Document of {_ISO}camt.053.001… or camt.054.001…, not {shown[:200]}")


def _part(values: Values, *path: str) -> Values:
    """What an inner element has; empty if it is not there."""
    for name in path:
        inner = values.get(name)
        values = inner if isinstance(inner, dict) else {}
    return values


def _status(entry: Values, details: Values) -> BankStatus | None:
    """None for what is no payment, or not booked: charges, incoming money, information, a return that is to come."""
    said = entry.get("Sts", "BOOK")
    status = _STATUSES.get(said.strip() if isinstance(said, str) else said.get("Cd", ""))
    families = (_part(values, "BkTxCd", "Domn", "Fmly").get("SubFmlyCd") for values in (details, entry))
    if status is None or next(filter(None, families), None) in _CHARGES:
        return None
    is_credit = details.get("CdtDbtInd", entry.get("CdtDbtInd")) == "CRDT"
    if status is BankStatus.EXECUTED and is_credit and "RtrInf" in details:
        return BankStatus.RETURNED
    if status is BankStatus.EXECUTED and _is_true(entry.get("RvslInd")):
        return BankStatus.REVERSED
    return None if is_credit or "RtrInf" in details else status


def _reason(information: Values) -> str:
    reason = _part(information, "Rsn")
    code = reason.get("Cd") or reason.get("Prtry")
    return ": ".join(text for text in (code, " ".join(information.get("AddtlInf", []))) if text) or "returned"


def _is_true(text: str | None) -> bool:
    return text in ("true", "1")
