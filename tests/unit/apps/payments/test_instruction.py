"""The instruction of a payment: carried whole, said once, never contradicted."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from paceline.errors import InvalidInput
from paceline_payments.instruction import MAX_LENGTH
from paceline_payments.model import Party, Payment, Terms
from paceline_payments.parsing import payment_of_json
from paceline_payments.serialization import context_json, payment_to_json, read_context

DOCUMENT: dict[str, Any] = {
    "paymentId": "pay-1",
    "amount": "12.30",
    "currency": "EUR",
    "payer": {"name": "Alice", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bob", "account": "0532013000"},
    "executeAt": "2027-03-01T16:00:00Z",
}
SAID: dict[str, Any] = {
    "PmtId": {"EndToEndId": "invoice-17", "UETR": "eb6305c9-1f7f-49de-aed0-16487c27b42d"},
    "Cdtr": {"PstlAdr": {"AdrLine": ["Rue 1", "Paris\n7e"], "Ctry": "FR"}},
    "RmtInf": {"Ustrd": ['Café \\ "17"\t\u2028'], "Strd": [{"CdtrRefInf": {"Ref": "RF18539007547034"}}]},
}


def test_the_bank_gets_what_was_said_and_what_the_payment_says_itself() -> None:
    body = payment_of_json(DOCUMENT | {"instruction": SAID}).to_json()
    assert body["instruction"] == {
        **SAID,
        "Amt": {"InstdAmt": {"Ccy": "EUR", "amt": "12.30"}},
        "Dbtr": {"Nm": "Alice"},
        "DbtrAcct": {"Id": {"IBAN": "DE89370400440532013000"}},
        "Cdtr": {"Nm": "Bob", **SAID["Cdtr"]},
        "CdtrAcct": {"Id": {"Othr": {"Id": "0532013000"}}},
    }
    assert body["payee"] == {"name": "Bob", "account": "0532013000"}


def test_a_payment_and_its_whole_instruction_are_the_same_payment_as_with_the_part_that_it_does_not_say() -> None:
    payment = payment_of_json(DOCUMENT | {"instruction": SAID})
    whole = dict(reversed(payment.whole_instruction.items()))
    assert payment_of_json(DOCUMENT | {"instruction": whole}) == payment
    assert payment_of_json(payment_to_json(payment)) == payment


def test_a_queue_item_carries_the_instruction() -> None:
    payment = payment_of_json(DOCUMENT | {"instruction": SAID})
    terms = Terms("0.00", date(2027, 3, 1))
    assert read_context(json.loads(context_json(payment, terms, 0))) == (payment, terms)


@pytest.mark.parametrize(
    ("instruction", "field"),
    [
        ({"Amt": {"InstdAmt": {"Ccy": "EUR", "amt": "99.00"}}}, "instruction.Amt.InstdAmt.amt"),
        ({"Amt": {"InstdAmt": {"Ccy": "USD", "amt": "12.30"}}}, "instruction.Amt.InstdAmt.Ccy"),
        ({"Amt": {"InstdAmt": "12.30"}}, "instruction.Amt.InstdAmt"),
        ({"Amt": {"EqvtAmt": {"Amt": "99.00"}}}, "instruction.Amt.EqvtAmt"),
        ({"Cdtr": {"Nm": "Mallory"}}, "instruction.Cdtr.Nm"),
        ({"CdtrAcct": {"Id": {"Othr": {"Id": "666"}}}}, "instruction.CdtrAcct.Id.Othr.Id"),
        ({"CdtrAcct": {"Id": {"IBAN": "GB29NWBK60161331926819"}}}, "instruction.CdtrAcct.Id.IBAN"),
        ({"DbtrAcct": {"Id": {"IBAN": "GB29NWBK60161331926819"}}}, "instruction.DbtrAcct.Id.IBAN"),
        ({"DbtrAcct": {"Id": {"Othr": {"Id": "666"}}}}, "instruction.DbtrAcct.Id"),
        ({"Cdtr": "Mallory"}, "instruction.Cdtr"),
        ("text", "instruction"),
        ([], "instruction"),
        ({"NbOfTxs": "1"}, "instruction.NbOfTxs"),
        ({"SplmtryData": [{"Envlp": "x"}]}, "instruction.SplmtryData"),
        ({"rmtInf": {"Ustrd": ["x"]}}, "instruction"),
        ({"RmtInf": {"Ustrd": [17]}}, "instruction.RmtInf.Ustrd[0]"),
        ({"RmtInf": {"Ustrd": [""]}}, "instruction.RmtInf.Ustrd[0]"),
        ({"RmtInf": {"Ustrd": []}}, "instruction.RmtInf.Ustrd"),
        ({"RmtInf": {"Ustrd": ["\ud800"]}}, "instruction.RmtInf.Ustrd[0]"),
        ({"RmtInf": {"Ustrd": ["\x00"]}}, "instruction.RmtInf.Ustrd[0]"),
        ({"RmtInf": {"Ustrd": ["x" * MAX_LENGTH]}}, "instruction"),
    ],
)
def test_what_can_not_be_carried_is_refused_with_its_place(instruction: object, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        payment_of_json(DOCUMENT | {"instruction": instruction})
    assert refused.value.field == field


def test_a_payment_that_says_nothing_else_has_no_instruction_of_its_own() -> None:
    bob = Party("Bob", "GB29NWBK60161331926819")
    payment = Payment("p", "1.00", "EUR", Party("Alice", "", "17"), bob, datetime(2027, 3, 1, tzinfo=UTC))
    assert payment.instruction is None
    assert payment.whole_instruction["DbtrAcct"] == {"Id": {"Othr": {"Id": "17"}}}
