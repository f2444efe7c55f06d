"""A CSV feed with every field of the instruction."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidInput
from paceline_payments.feed import FeedFormat, Line, columns_of, parse
from paceline_payments.instruction_columns import FURTHER_COLUMNS, PATHS, instruction_of_fields
from paceline_payments.parsing import COLUMNS, payment_of_json

GOOD = "p1,12.30,EUR,Alice,DE89370400440532013000,Bob,,2027-03-01T16:00:00Z"


def test_a_line_and_an_object_that_say_the_same_are_the_same_payment() -> None:
    header = f"{','.join(COLUMNS)},payeeAccount,endToEndId,remittanceText,creditorReference,payeeBic,instruction\n"
    line = f'{GOOD},0532013000,e-1,"Invoice 17, part 2",RF18539007547034,,"{{""Purp"":{{""Prtry"":""X""}}}}"\n'
    columns = columns_of(Line(1, header.encode(), 0))
    (parsed,), rejected = parse([Line(2, line.encode(), 0)], FeedFormat.CSV, columns)
    assert not rejected
    assert parsed.payment == payment_of_json(
        {
            "paymentId": "p1",
            "amount": "12.30",
            "currency": "EUR",
            "payer": {"name": "Alice", "iban": "DE89370400440532013000"},
            "payee": {"name": "Bob", "account": "0532013000"},
            "executeAt": "2027-03-01T16:00:00Z",
            "instruction": {
                "PmtId": {"EndToEndId": "e-1"},
                "RmtInf": {"Ustrd": ["Invoice 17, part 2"], "Strd": [{"CdtrRefInf": {"Ref": "RF18539007547034"}}]},
                "Purp": {"Prtry": "X"},
            },
        }
    )


def test_every_column_has_a_place_of_its_own() -> None:
    instruction = instruction_of_fields({column: f"text of {column}" for column in PATHS})
    assert all(f"text of {column}" in str(instruction) for column in PATHS)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (f"{','.join(COLUMNS)},purpose,purpose", "'purpose', twice"),
        (f"{','.join(COLUMNS)},color", "'color', which is unknown"),
        (f"purpose,{','.join(COLUMNS)}", "must name the columns"),
    ],
)
def test_a_header_with_other_columns_is_refused(header: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        columns_of(Line(1, header.encode(), 0))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"instruction": "{"}, "instruction"),
        ({"instruction": "[]"}, "instruction"),
        ({"instruction": '{"ChrgBr":"SLEV"}', "chargeBearer": "SHAR"}, "chargeBearer"),
        ({"instruction": '{"RmtInf":{"Ustrd":["a"]}}', "remittanceText": "b"}, "remittanceText"),
        ({"instruction": '{"PmtId":"a"}', "uetr": "b"}, "uetr"),
        ({"instruction": '{"lower":"a"}'}, "instruction"),
    ],
)
def test_two_columns_never_say_the_same(fields: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        instruction_of_fields(fields)
    assert refused.value.field == field


def test_all_columns_are_known() -> None:
    assert len(set(FURTHER_COLUMNS)) == len(FURTHER_COLUMNS)
