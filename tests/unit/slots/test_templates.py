"""Templates: which config a name is made from."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline.slots.templates import best_template, is_template, refuse_template

names = st.text("ab-", min_size=1, max_size=6)
templates = st.text("ab*", min_size=1, max_size=5).filter(is_template)


@given(st.lists(templates | names, max_size=6), names)
def test_the_best_template_matches_most_literal_characters(given_names: list[str], name: str) -> None:
    """A `*` stands for at least one character; `fnmatch` with `?*` for it is the naive reading."""
    matching = [one for one in given_names if "*" in one and fnmatchcase(name, re.sub(r"\*+", "?*", one))]
    best = best_template(given_names, name)
    assert (best is None) == (not matching)
    if best is not None:
        assert best in matching
        literals = [len(template.replace("*", "")) for template in matching]
        assert len(best.replace("*", "")) == max(literals)


def test_of_equally_good_ones_the_choice_does_not_depend_on_the_order() -> None:
    assert best_template(["a*", "*a"], "aaa") == best_template(["*a", "a*"], "aaa")
    assert best_template(["*-7", "merchant-*", "*"], "merchant-7") == "merchant-*"


def test_a_template_stands_for_more_than_nothing_and_for_any_sign() -> None:
    assert best_template(["merchant-*"], "merchant-") is None
    assert best_template(["a*c"], "ab\nc") == "a*c"
    assert best_template(["a.*"], "abc") is None, "a dot is a dot"
    assert best_template(["*" * 60 + "x"], "a" * 60) is None, "and takes no time to find out"


def test_nothing_is_booked_under_a_template_itself() -> None:
    assert refuse_template("merchant-7") == "merchant-7"
    with pytest.raises(InvalidInput, match="such as 'merchant-7'") as caught:
        refuse_template("merchant-*", "config_names[1]")
    assert caught.value.field == "config_names[1]"
