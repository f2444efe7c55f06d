"""Encryption of what payments and feeds say, at rest: parties, instructions, staged and rejected records.

Payments that were stored before there were keys stay as they are. Each text names its key, and what is looked up is
searched by a keyed hash under every key, so that keys can be rotated while payments are accepted.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sqlalchemy.engine import Row

from paceline.dispatch.encryption import Encryption, InvalidCiphertext, KeyMissing, shown_key
from paceline.errors import StoreUnavailable
from paceline_payments.model import Party, Payment

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
            "instruction": encryption.encrypt(whole, _about("payment", payment.payment_id)),
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


def hidden(encryption: Encryption | None, text: str | None, *about: object) -> str | None:
    """The text as it is stored. It can be read only as a text about the same thing."""
    return text if encryption is None or text is None else encryption.encrypt(text, _about(*about))


def revealed(encryption: Encryption | None, text: str, *about: object) -> str:
    """A stored text, decrypted as far as the keys go."""
    key_id = shown_key(text)
    if key_id is None:
        return text
    try:
        if encryption is not None:
            return encryption.decrypt(text, _about(*about))
    except (KeyMissing, InvalidCiphertext) as error:
        return str(error)
    return f"encrypted with the key {key_id}"


def hidden_bytes(encryption: Encryption | None, data: bytes, *about: object) -> bytes:
    """`hidden`, of bytes."""
    return data if encryption is None else encryption.seal(data, _about(*about))


def revealed_bytes(encryption: Encryption | None, data: bytes, *about: object) -> bytes:
    """The inverse of `hidden_bytes`.

    Raises:
        StoreUnavailable: This process lacks the key. Another one may have it.
    """
    if encryption is None:
        return data
    try:
        return encryption.unseal(data, _about(*about))
    except (KeyMissing, InvalidCiphertext) as error:
        raise StoreUnavailable(str(error)) from error


def lookups(encryption: Encryption | None, number: int) -> list[int]:
    """What stands for a fingerprint or an account in the tables. The first is stored; rows that are older than the
    present key, or than all keys, have one of the others."""
    return [number] if encryption is None else [*encryption.hashes(number), number]


def _about(*about: object) -> str:
    return "/".join(map(str, about))
