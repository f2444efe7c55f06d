"""Answers of a bank that repeat what the payment says: reasons go to logs, histories and error texts, where names,
accounts and remittance texts do not belong. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from paceline_payments.downstream.outcomes import Answer
from paceline_payments.model import Payment

WITHHELD = "[withheld]"
SHORTEST_TEXT = 6
"""Characters. A shorter text of an instruction is a code, such as SEPA or SALA."""
NOT_PERSONAL = ("PmtId", "PmtInfId", "MsgId", "CreDtTm", "ReqdExctnDt")
"""Members of an instruction that only identify it. An operator looks for them in reasons."""


def without_parties(answer: Answer, payment: Payment) -> Answer:
    """The answer, with `[withheld]` in place of the payment's names, accounts and texts, in any case and spacing."""
    texts = [*payment.payer, *payment.payee, *_texts(payment)]
    # The longest first: a name may be part of a remittance text.
    known = sorted({text.strip() for text in texts if text.strip()}, key=len, reverse=True)
    secret = re.compile("|".join(map(_pattern, known)), re.IGNORECASE)
    return answer._replace(body=_withheld(answer.body, secret), text=secret.sub(WITHHELD, answer.text))


def _texts(payment: Payment) -> Iterator[str]:
    said = {} if payment.instruction is None else json.loads(payment.instruction)
    yield from _leaves([value for name, value in said.items() if name not in NOT_PERSONAL])


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= SHORTEST_TEXT:
            yield value
    else:
        for member in value.values() if isinstance(value, dict) else value:
            yield from _leaves(member)


def _pattern(text: str) -> str:
    if " " in text:
        return r"(?<!\w)" + r"\s+".join(map(re.escape, text.split())) + r"(?!\w)"
    # An account may be printed in groups.
    return r"(?<!\w)" + r"\s?".join(map(re.escape, text)) + r"(?!\w)"


def _withheld(value: Any, secret: re.Pattern[str]) -> Any:
    """Only what a reason is made of: other members decide the verdict, or are the bank's own names."""
    if not isinstance(value, dict):
        return value
    reasons = ("reason", "detail", "verdict", "title")
    return {
        name: secret.sub(WITHHELD, member) if name in reasons and isinstance(member, str) else member
        for name, member in value.items()
    }
