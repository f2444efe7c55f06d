"""Payments as they arrive: what is understood, what is refused, and under which name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.model import Party, Payment
from paceline_payments.parsing import checked_amount, payment_of_fields, payment_of_json

FIELDS = (
    "pay-1",
    "12.3",
    "EUR",
    "Alice",
    "DE89 3704 0044 0532 0130 00",
    "Bob",
    "gb29nwbk60161331926819",
    "2027-03-01T17:00:00.0001+01:00",
)
DOCUMENT: dict[str, Any] = {
    "paymentId": "pay-1",
    "amount": "12.3",
    "currency": "EUR",
    "payer": {"name": " Alice ", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
    "executeAt": "2027-03-01T16:00:00.001Z",
}


def test_a_line_and_an_object_that_say_the_same_are_the_same_payment() -> None:
    assert payment_of_fields(FIELDS) == payment_of_json(DOCUMENT)
    assert payment_of_json(DOCUMENT) == Payment(
        "pay-1",
        "12.30",
        "EUR",
        Party("Alice", "DE89370400440532013000"),
        Party("Bob", "GB29NWBK60161331926819"),
        datetime(2027, 3, 1, 16, 0, 0, 1000, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("member", "value", "field"),
    [
        ("paymentId", "", "paymentId"),
        ("paymentId", "x" * 129, "paymentId"),
        ("paymentId", "a\x00b", "paymentId"),
        ("paymentId", 7, "paymentId"),
        ("paymentId", None, "paymentId"),
        ("amount", 12.34, "amount"),
        ("amount", "12.345", "amount"),
        ("amount", "-1", "amount"),
        ("amount", "1e3", "amount"),
        ("amount", "0.00", "amount"),
        ("amount", "01.00", "amount"),
        ("amount", "1٣", "amount"),
        ("amount", "NaN", "amount"),
        ("amount", "12345678901234", "amount"),
        ("currency", "eur", "currency"),
        ("currency", "XXX", "currency"),
        ("currency", ["EUR"], "currency"),
        ("payer", "Alice", "payer"),
        ("payer", {"name": "Alice"}, "payer.iban"),
        ("payer", {"name": "", "iban": "DE89370400440532013000"}, "payer.name"),
        ("payer", {"name": "A\ud800", "iban": "DE89370400440532013000"}, "payer.name"),
        ("payer", {"name": "A", "iban": "DE88370400440532013000"}, "payer.iban"),
        ("payer", {"name": "A", "iban": "DE89370400440532013000", "bic": "X"}, "payer.bic"),
        ("payee", {"name": "A", "iban": "XX89370400440532013000"}, "payee.iban"),
        ("payee", {"name": "x" * 141, "iban": "DE89370400440532013000"}, "payee.name"),
        ("executeAt", "tomorrow", "executeAt"),
        ("executeAt", "2027-03-01T16:00:00", "executeAt"),
        ("executeAt", "9999-01-01T00:00:00Z", "executeAt"),
        ("executeAt", 1, "executeAt"),
        ("configName", "", "configName"),
        ("configName", "merchant-*", "configName"),
        ("memo", "hello", "memo"),
    ],
)
def test_what_is_wrong_is_named(member: str, value: object, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        payment_of_json({**DOCUMENT, member: value})
    assert caught.value.field == field


@pytest.mark.parametrize("missing", ["paymentId", "amount", "currency", "payer", "payee", "executeAt"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        payment_of_json({member: value for member, value in DOCUMENT.items() if member != missing})
    assert caught.value.field == missing


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_only_an_object_is_a_payment(value: object) -> None:
    with pytest.raises(InvalidInput):
        payment_of_json(value)


@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_a_line_has_exactly_its_fields(count: int) -> None:
    with pytest.raises(InvalidInput, match="fields instead of 8"):
        payment_of_fields((FIELDS * 2)[:count])


def test_a_wrong_account_is_refused_every_time_it_comes() -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="payerIban"):
            payment_of_fields((*FIELDS[:4], "DE00370400440532013000", *FIELDS[5:]))


@given(st.sampled_from(sorted(MINOR_UNITS)), st.integers(1, 10**13 - 1))
def test_an_amount_has_exactly_its_currencys_decimals(currency: str, minor: int) -> None:
    digits = MINOR_UNITS[currency]
    whole, fraction = divmod(minor, 10**digits)
    text = f"{whole}.{fraction:0{digits}d}" if digits else str(whole)
    assert checked_amount(text, currency) == text
    trimmed = text.rstrip("0").rstrip(".") if digits else text
    assert checked_amount(trimmed, currency) == text
    with pytest.raises(InvalidInput):
        checked_amount(f"{whole}.{fraction:0{digits}d}5" if digits else f"{whole}.5", currency)


def test_the_currencies_of_the_standard() -> None:
    assert {MINOR_UNITS[code] for code in ("EUR", "USD", "GBP")} == {2}
    assert (MINOR_UNITS["JPY"], MINOR_UNITS["KWD"], MINOR_UNITS["CLF"]) == (0, 3, 4)
    assert all(len(code) == 3 and code.isupper() for code in MINOR_UNITS)
    assert len(MINOR_UNITS) > 150
