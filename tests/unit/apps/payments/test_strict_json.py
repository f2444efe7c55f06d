"""A member that occurs twice is no value: readers differ in which one counts."""

from __future__ import annotations

import json

import pytest

from paceline_payments.strict_json import RepeatedMember, strict_json


def test_a_text_without_repetitions_is_what_json_says() -> None:
    text = '{"amount": "1.00", "payer": {"name": "Ann"}, "payee": {"name": "Bo"}, "all": [{"a": 1}, {"a": 2.5}, null]}'
    assert strict_json(text) == strict_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"amount": "1.00", "amount": "9.00"}', "amount"),
        ('{"amount": "1.00", "amount": "1.00"}', "amount"),
        ('{"payee": {"iban": "A", "name": "B", "\\u0069ban": "C"}}', "iban"),
        ('[{"a": 1, "b": 2, "c": 3, "b": 4}]', "b"),
    ],
)
def test_a_member_that_occurs_twice_is_named(text: str, name: str) -> None:
    with pytest.raises(RepeatedMember) as raised:
        strict_json(text)
    assert raised.value.name == name


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        strict_json("{")
