"""What a payment says, as encrypted columns. Payments that were stored before there were keys stay as they are."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sqlalchemy.engine import Row

from paceline.dispatch.encryption import Encryption, hidden, revealed, shown_key
from paceline_payments.model import Party, Payment
from paceline_payments.rules import account_key
from paceline_payments.slot_configs import AccountTexts, plain_account

PARTY_COLUMNS = ("payer_name", "payer_iban", "payer_account", "payee_name", "payee_iban", "payee_account")


class Said(NamedTuple):
    """What a payment's row says that is confidential."""

    payer: Party
    payee: Party
    instruction: str | None


def said_columns(encryption: Encryption | None, payment: Payment) -> dict[str, str | None]:
    """What a payment says, as columns: each in its own, or all of it encrypted in one."""
    texts = (*payment.payer, *payment.payee)
    if encryption is not None:
        whole = json.dumps([*texts, payment.instruction])
        return {
            **dict.fromkeys(PARTY_COLUMNS),
            "instruction": hidden(encryption, whole, "payment", payment.payment_id),
        }
    return {
        **{name: text or None for name, text in zip(PARTY_COLUMNS, texts, strict=True)},
        "instruction": payment.instruction,
    }


def read_said(encryption: Encryption | None, row: Row[Any]) -> Said:
    """The inverse of `said_columns`. Without its key, the key's id stands for the names."""
    if shown_key(row.instruction) is None:
        payer = Party(row.payer_name, row.payer_iban or "", row.payer_account or "")
        payee = Party(row.payee_name, row.payee_iban or "", row.payee_account or "")
        return Said(payer, payee, row.instruction)
    text = revealed(encryption, row.instruction, "payment", row.payment_id)
    try:
        *texts, instruction = json.loads(text)
    except ValueError:
        return Said(Party(text, "", ""), Party(text, "", ""), None)
    return Said(Party(*texts[:3]), Party(*texts[3:]), instruction)


def account_texts(encryption: Encryption | None) -> AccountTexts:
    """What stands for accounts in the names of slot configs."""
    if encryption is None:
        return plain_account
    return lambda number: [f"{hashed % 2**64:016x}" for hashed in encryption.hashes(account_key(number))]
