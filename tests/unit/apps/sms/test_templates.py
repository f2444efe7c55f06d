"""Texts with variables."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import ConfigurationError, InvalidInput
from paceline_sms.templates import Templates, VariablesWrong

TEMPLATES = Templates({"code": "{name}: {{{code}}} is your code, {name}", "plain": "Thank you"})


def test_variables_are_filled_in_and_braces_stay() -> None:
    assert TEMPLATES.render("code", {"name": "Ünal {x}", "code": 4711}) == "Ünal {x}: {4711} is your code, Ünal {x}"
    assert TEMPLATES.render("plain", {}) == "Thank you"


@pytest.mark.parametrize(
    ("variables", "field", "problem"),
    [
        ({"code": 1}, "variables.name", "is missing; the template code needs name"),
        ({}, "variables.code", "needs code, name"),
        ({"code": 1, "name": "x", "extra": 1}, "variables.extra", "is not in the template code, which has code, name"),
    ],
)
def test_a_missing_or_unknown_variable_is_named(variables: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(VariablesWrong) as caught:
        TEMPLATES.render("code", variables)
    assert (caught.value.field, problem in caught.value.problem) == (field, True)


@pytest.mark.parametrize("value", [None, True, 1.5, [], {}, 10**18])
def test_a_value_is_a_text_or_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidInput, match="must be a text or a whole number"):
        TEMPLATES.render("code", {"name": "x", "code": value})


def test_an_unknown_template_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="there is code, plain"):
        TEMPLATES.render("cod", {})


@pytest.mark.parametrize("text", ["", " ", "{", "}", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{a b}"])
def test_a_text_that_could_not_be_filled_in_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ConfigurationError, match="templates"):
        Templates({"wrong": text})
