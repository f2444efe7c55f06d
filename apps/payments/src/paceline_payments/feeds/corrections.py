"""A rejected transaction of a document as a line of NDJSON, to be corrected and sent again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidInput
from paceline_payments.instruction import Instruction, take_member


def correctable_line(payment_id: str, instruction: Instruction) -> str:
    """What can be read of a transaction, each thing once: a payment's own members, and the rest as its instruction."""
    rest = json.loads(json.dumps(instruction))
    date = rest.get("ReqdExctnDt", "")
    date = (date.get("Dt") or date.get("DtTm") or "") if isinstance(date, Mapping) else date
    document = {
        "paymentId": payment_id,
        "amount": _take(rest, "Amt", "InstdAmt", "amt"),
        "currency": _take(rest, "Amt", "InstdAmt", "Ccy"),
        "payer": _party(rest, "Dbtr"),
        "payee": _party(rest, "Cdtr"),
        "executeAt": date if "T" in date else f"{date}T00:00:00Z",
        "instruction": rest,
    }
    return json.dumps(document, ensure_ascii=False)


def _party(rest: Instruction, role: str) -> dict[str, Any]:
    name, iban = _take(rest, role, "Nm"), _take(rest, f"{role}Acct", "Id", "IBAN")
    if iban:
        return {"name": name, "iban": iban}
    account = _take(rest, f"{role}Acct", "Id", "Othr", "Id")
    return {"name": name, "account": account} if account else {"name": name, "iban": ""}


def _take(rest: Instruction, *path: str) -> object:
    try:
        return take_member(rest, path) or ""
    except InvalidInput:
        return ""
