"""Fees, value dates, limits, blocked parties, and the file they are read from."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigurationError, InvalidInput
from paceline_payments.model import Party, Payment
from paceline_payments.rules import RuleBook, Tariff, fingerprint, load_rules, rules_of

NOW = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
PAYMENT = Payment(
    "p",
    "1000.00",
    "EUR",
    Party("Alice", "DE89370400440532013000"),
    Party("Bob", "GB29NWBK60161331926819"),
    datetime(2027, 3, 1, 16, 0, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("amount", "currency", "fee"),
    [
        ("1000.00", "EUR", "1.00"),
        ("0.01", "EUR", "0.00"),
        ("5.00", "EUR", "0.01"),
        ("499", "JPY", "0"),
        ("500", "JPY", "1"),
    ],
)
def test_a_fee_is_rounded_half_up_to_the_smallest_unit(amount: str, currency: str, fee: str) -> None:
    rules = RuleBook(tariff=Tariff(Decimal("0.1")))
    assert rules.terms(PAYMENT._replace(amount=amount, currency=currency), NOW).fee == fee


def test_without_a_rule_there_is_no_fee() -> None:
    assert RuleBook().terms(PAYMENT, NOW).fee == "0.00"


def test_a_fee_stays_within_its_bounds() -> None:
    tariff = Tariff(Decimal("0.1"), least=Decimal("0.25"), most=Decimal(2))
    assert [tariff.fee(Decimal(amount), "EUR") for amount in ("1", "1000", "9000")] == ["0.25", "1.00", "2.00"]


BRUSSELS = rules_of(
    {
        "clearing": {
            "EUR": {
                "zone": "Europe/Brussels",
                "holidays": "ECB",
                "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "00:00", "to": "16:00"}],
            }
        }
    }
)


@pytest.mark.parametrize(
    ("at", "value_date"),
    [
        (datetime(2027, 3, 1, 14, 59, tzinfo=UTC), date(2027, 3, 1)),
        (datetime(2027, 3, 1, 15, 0, tzinfo=UTC), date(2027, 3, 2)),  # 16:00 in Brussels: past the cut-off
        (datetime(2027, 7, 1, 13, 59, tzinfo=UTC), date(2027, 7, 1)),
        (datetime(2027, 7, 1, 14, 0, tzinfo=UTC), date(2027, 7, 2)),  # in summer that is an hour earlier
        (datetime(2027, 3, 5, 20, 0, tzinfo=UTC), date(2027, 3, 8)),  # Friday evening
        (datetime(2027, 3, 6, 12, 0, tzinfo=UTC), date(2027, 3, 8)),  # Saturday
        (datetime(2027, 3, 25, 20, 0, tzinfo=UTC), date(2027, 3, 30)),  # before Good Friday
        (datetime(2027, 3, 1, 23, 30, tzinfo=UTC), date(2027, 3, 2)),  # 00:30 the next day in Brussels
    ],
)
def test_the_value_date_follows_cut_off_weekend_holiday_and_zone(at: datetime, value_date: date) -> None:
    assert BRUSSELS.terms(PAYMENT, at).value_date == value_date


def test_other_currencies_clear_by_the_default() -> None:
    late = PAYMENT._replace(currency="USD", execute_at=datetime(2027, 3, 1, 18, 0, tzinfo=UTC))
    assert BRUSSELS.terms(late, late.execute_at).value_date == date(2027, 3, 2)


def test_a_limit_is_the_most_that_may_pass() -> None:
    book = rules_of({"limits": {"EUR": "1000.00"}})
    book.check(PAYMENT, NOW)
    book.check(PAYMENT._replace(amount="5000.00", currency="USD"), NOW)
    with pytest.raises(InvalidInput, match=r"^amount: 1000.01 EUR is above"):
        book.check(PAYMENT._replace(amount="1000.01"), NOW)


@pytest.mark.parametrize("name", ["Mallory Ltd", "MALLORY   LTD", "Mállory ltd"])
def test_a_blocked_name_is_found_in_any_spelling(name: str) -> None:
    book = rules_of({"blocked": {"names": ["Mallory Ltd"], "ibans": ["GB29 NWBK 6016 1331 9268 19"]}})
    with pytest.raises(InvalidInput, match=r"payer\.name"):
        book.check(PAYMENT._replace(payer=Party(name, "DE89370400440532013000")), NOW)


def test_a_blocked_account_is_found_on_either_side() -> None:
    book = rules_of({"blocked": {"ibans": ["gb29 NWBK 6016 1331 9268 19"]}})
    with pytest.raises(InvalidInput, match=r"payee\.iban"):
        book.check(PAYMENT, NOW)
    with pytest.raises(InvalidInput, match=r"payer\.iban"):
        book.check(PAYMENT._replace(payer=PAYMENT.payee), NOW)


@pytest.mark.parametrize(
    "number", ["GB29NWBK60161331926819", "gb29 nwbk 6016 1331 9268 19", "GB29-NWBK-60161331926819"]
)
def test_an_iban_that_comes_as_another_accounts_number_is_blocked_and_counts_as_the_iban(number: str) -> None:
    book = rules_of({"blocked": {"ibans": ["GB29NWBK60161331926819"]}})
    disguised = PAYMENT._replace(payee=Party("Bob", "", number))
    with pytest.raises(InvalidInput, match=r"payee\.account"):
        book.check(disguised, NOW)
    assert fingerprint(disguised) == fingerprint(PAYMENT), "it is a duplicate"


def test_nothing_is_planned_beyond_the_horizon() -> None:
    book = rules_of({"horizon": "P30D"})
    book.check(PAYMENT._replace(execute_at=NOW + timedelta(days=30)), NOW)
    with pytest.raises(InvalidInput, match="executeAt"):
        book.check(PAYMENT._replace(execute_at=NOW + timedelta(days=30, seconds=1)), NOW)


def test_duplicates_share_a_fingerprint_whatever_their_names_and_times() -> None:
    other = PAYMENT._replace(payment_id="q", execute_at=NOW, payer=Party("A.", PAYMENT.payer.iban))
    assert fingerprint(other) == fingerprint(PAYMENT)
    for changed in ({"amount": "1000.01"}, {"currency": "USD"}, {"payer": PAYMENT.payee}):
        assert fingerprint(PAYMENT._replace(**changed)) != fingerprint(PAYMENT)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"limit": {}}, "rules.limit"),
        ({"limits": {"EURO": "1"}}, "limits.EURO"),
        ({"limits": {"EUR": 100}}, "limits.EUR"),
        ({"limits": {"default": "1"}}, "limits.default"),
        ({"limits": []}, "limits"),
        ({"duplicates": "maybe"}, "duplicates"),
        ({"duplicate_window": "a day"}, "duplicate_window"),
        ({"blocked": {"ibans": ["DE00"]}}, "blocked.ibans"),
        ({"blocked": {"ibans": "DE00"}}, "blocked.ibans"),
        ({"fees": {"EUR": {"percent": "-1"}}}, "fees.EUR.percent"),
        ({"fees": {"EUR": {"percent": 0.1}}}, "fees.EUR.percent"),
        ({"fees": {"EUR": {"flat": "1"}}}, "fees.EUR.flat"),
        ({"clearing": {"EUR": {"zone": "Mars/Base"}}}, "clearing.EUR.calendar.zone"),
        ({"configs": "payer-{payerIban}"}, "configs"),
        ({"configs": ["payer-{payer}"]}, "configs[0]"),
        ({"configs": ["ok", "payer-{payerIban"]}, "configs[1]"),
        ({"configs": ["payer-{payerIban.__class__}"]}, "configs[0]"),
        ({"configs": ["payer-{payerIban!r}"]}, "configs[0]"),
        ({"configs": ["payer-{}"]}, "configs[0]"),
        ({"configs": [5]}, "configs[0]"),
        ({"configs": [""]}, "configs[0]"),
        ({"configs": ["payer-*"]}, "configs[0]"),
        ({"configs": ["x" * 120 + "{payerIban}"]}, "configs[0]"),
        ({"configs": [f"c{n}" for n in range(8)]}, "configs"),
        ({"schemes": {"EURO": "sepa"}}, "schemes.EURO"),
        ({"schemes": {"EUR": ""}}, "schemes.EUR"),
        ({"schemes": {"EUR": "sepa-*"}}, "schemes.EUR"),
    ],
)
def test_a_wrong_rule_is_named(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules_of(document)
    assert caught.value.field == field


def test_rules_name_further_configs_of_a_payment() -> None:
    rules = rules_of(
        {"configs": ["payer-{payerIban}", "{scheme}", "{payeeCountry}-in", "bank"], "schemes": {"EUR": "sepa"}}
    )
    names = rules.slot_configs.names("bank", PAYMENT)
    assert names == ("bank", "payer-DE89370400440532013000", "sepa", "GB-in")
    assert rules.slot_configs.names("own", PAYMENT._replace(currency="JPY"))[2] == "JPY"
    assert rules_of({"configs": ["bank"]}).slot_configs.names("bank", PAYMENT) == "bank"
    assert RuleBook().slot_configs.names("bank", PAYMENT) == "bank"


def test_a_payment_counts_under_every_text_of_its_accounts() -> None:
    configs = rules_of({"configs": ["payer-{payerIban}", "{scheme}", "{payerIban}-{payeeIban}"]}).slot_configs

    def accounts(number: str) -> list[str]:
        return [f"new{number[:2]}", f"old{number[:2]}"]

    names = configs.names("bank", PAYMENT, accounts)
    assert names == ("bank", "payer-newDE", "payer-oldDE", "EUR", "newDE-newGB", "oldDE-oldGB")
    assert configs.names_of("GB29", accounts) == [
        "payer-newGB",
        "payer-oldGB",
        "newGB-{payeeIban}",
        "oldGB-{payeeIban}",
        "{payerIban}-newGB",
        "{payerIban}-oldGB",
    ]
    configs.check_room(3)
    with pytest.raises(ConfigurationError, match="a payment has 10 with 4 encryption keys"):
        configs.check_room(4)


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('duplicates = "reject"\n[fees.default]\npercent = "1"\n[limits]\nJPY = "100"\n')
    book = load_rules(path)
    assert book.reject_duplicates
    assert book.terms(PAYMENT, NOW).fee == "10.00"
    assert book.limits == {"JPY": Decimal(100)}
    path.write_text("duplicates = ")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load_rules(path)
    with pytest.raises(ConfigurationError, match="can't be read"):
        load_rules(tmp_path / "none.toml")


def test_the_rule_book_in_the_docstring_is_one() -> None:
    import tomllib

    from paceline_payments import rules

    text = (rules.__doc__ or "").split("):\n\n", 1)[1]
    book = rules_of(tomllib.loads("\n".join(line[4:] for line in text.splitlines())))
    assert book.reject_duplicates
    assert book.limits == {"EUR": Decimal(1_000_000)}
