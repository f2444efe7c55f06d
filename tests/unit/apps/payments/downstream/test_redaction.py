"""What a bank repeats of a payment is withheld; what it says itself is kept."""

from __future__ import annotations

import pytest

from paceline_payments.downstream.outcomes import Answer, reason_of
from paceline_payments.downstream.redaction import without_parties
from paceline_payments.instruction import instruction_text
from paceline_payments.model import Party
from tests.unit.apps.payments.bench import payment

TEXT = instruction_text(
    {
        "PmtId": {"EndToEndId": "INVOICE-17-AND-18"},
        "PmtTpInf": {"SvcLvl": {"Cd": "SEPA"}},
        "RmtInf": {"Ustrd": ["Rent for March", "2/2"]},
    }
)
PAID = payment("p")._replace(
    payer=Party("Ann (Berlin)", "DE89370400440532013000", ""), payee=Party("Bo", "", "01-39139-1"), instruction=TEXT
)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("limit of Ann (Berlin) reached", "limit of [withheld] reached"),
        ("ANN  (BERLIN)!", "[withheld]!"),
        ("DE89 3704 0044 0532 0130 00 is closed", "[withheld] is closed"),
        ("de89370400440532013000", "[withheld]"),
        ("account 01-39139-1 of Bo", "account [withheld] of [withheld]"),
        ("Bordeaux, about Bob", "Bordeaux, about Bob"),
        ("text: Rent for March", "text: [withheld]"),
        ("INVOICE-17-AND-18 is no SEPA payment 2/2", "INVOICE-17-AND-18 is no SEPA payment 2/2"),
        ("insufficient funds", "insufficient funds"),
    ],
)
def test_names_accounts_and_texts_are_withheld(said: str, kept: str) -> None:
    for name in ("reason", "detail", "title", "verdict"):
        assert reason_of(without_parties(Answer(422, {name: said}), PAID)) == f"the downstream answered 422: {kept}"
    assert reason_of(without_parties(Answer(502, None, said), PAID)) == f"the downstream answered 502: {kept}"


def test_what_decides_the_verdict_is_unchanged() -> None:
    body = {"status": "REJECTED", "reference": "Bo", "reason": "Bo is unknown", "more": ["Bo"]}
    assert without_parties(Answer(200, body), PAID).body == body | {"reason": "[withheld] is unknown"}
    assert without_parties(Answer(200, ["Bo"]), PAID).body == ["Bo"]
