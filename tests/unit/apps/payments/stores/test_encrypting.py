"""What is stored of a payment under keys, and what a process reads that lacks them."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.dispatch.encryption import Encryption
from paceline_payments.model import Party
from paceline_payments.stores.encrypting import account_texts, read_said, said_columns
from tests.unit.apps.payments.bench import payment

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
PAID = payment("p")._replace(
    payer=Party("Ann Lee", "DE89370400440532013000", ""),
    payee=Party("Bo Ek", "", "01-39139-1"),
    instruction='{"Purp":{}}',
)
RINGS = [None, Encryption([OLD]), Encryption([NEW, OLD])]


def row(columns: dict[str, Any], payment_id: str = PAID.payment_id) -> Any:
    return SimpleNamespace(payment_id=payment_id, **columns)


@pytest.mark.parametrize("ring", RINGS)
def test_what_a_payment_says_comes_back(ring: Encryption | None) -> None:
    columns = said_columns(ring, PAID)
    assert read_said(RINGS[-1] if ring else None, row(columns)) == (PAID.payer, PAID.payee, PAID.instruction)
    readable = " ".join(text for text in columns.values() if text is not None)
    # Each has a character that base64 lacks: no random text has it in it.
    assert [text in readable for text in ("Ann Lee", "Bo Ek", "01-39139-1", '"Purp"')] == [ring is None] * 4


def test_a_payment_from_before_there_were_keys_is_read() -> None:
    assert read_said(RINGS[1], row(said_columns(None, PAID))).payee == PAID.payee


@pytest.mark.parametrize(("ring", "payment_id"), [(None, PAID.payment_id), (Encryption([NEW]), PAID.payment_id)])
def test_without_the_key_its_id_is_shown(ring: Encryption | None, payment_id: str) -> None:
    columns = said_columns(RINGS[1], PAID)
    payer, payee, instruction = read_said(ring, row(columns, payment_id))
    assert Encryption([OLD]).key_id in payer.name
    assert (payer.number, payee.number, instruction) == ("", "", None)


def test_what_belongs_to_another_payment_is_not_shown() -> None:
    said = read_said(RINGS[1], row(said_columns(RINGS[1], PAID), "another"))
    assert "can't be decrypted" in said.payer.name


def test_what_stands_for_an_account_depends_on_the_keys_and_never_shows_it() -> None:
    plain, by_old, by_both = (account_texts(ring)("DE89370400440532013000") for ring in RINGS)
    assert list(plain) == ["DE89370400440532013000"]
    assert [len(text) for text in by_both] == [16, 16]
    assert list(by_both[1:]) == list(by_old), "the first is under the key that encrypts"
    assert set(by_old).isdisjoint(account_texts(RINGS[1])("GB29NWBK60161331926819"))
