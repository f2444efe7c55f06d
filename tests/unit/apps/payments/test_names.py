"""Blocked names are found however they are written."""

from __future__ import annotations

import pytest

from paceline_payments.names import name_key


@pytest.mark.parametrize(
    "written",
    [
        "Jean-Pierre Müller",
        "MÜLLER JEAN PIERRE",
        "Müller, Jean-Pierre",
        "jean pierre  muller",
        "Jean\u2011Pierre Mu\u0308ller",
        "Ｊean Pierre Müller",
    ],
)
def test_case_accents_punctuation_and_order_do_not_matter(written: str) -> None:
    assert name_key(written) == name_key("Jean Pierre Muller")


@pytest.mark.parametrize(("one", "other"), [("Łódź S.A.", "LODZ SA"), ("O'Brien", "OBRIEN"), ("Straße", "STRASSE")])
def test_letters_without_a_mark_and_dots_are_plain(one: str, other: str) -> None:
    assert name_key(one) == name_key(other)


def test_other_words_are_another_name() -> None:
    assert name_key("Mallory Ltd") != name_key("Mallory Holdings Ltd")
    assert name_key("Ann Lee") != name_key("Annlee")
