"""The patterns that a token is bound to."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidInput
from paceline.server.access.names import EVERY_NAME, Names, OutsideNames, checked_names


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("team-a-payouts", True),
        ("team-a-", True),
        ("team-a-*", True),  # a template of theirs
        ("team-a", False),
        ("team-a*", False),  # a template that others follow, too
        ("team-*", False),
        ("team-ab-payouts", False),
        ("TEAM-A-payouts", False),
        ("bank", True),
        ("bank2", False),
        ("", False),
    ],
)
def test_a_pattern_is_a_name_or_how_names_begin(name: str, allowed: bool) -> None:
    names = checked_names(["team-a-*", "bank"])
    assert names.allow(name) is allowed
    if not allowed:
        with pytest.raises(OutsideNames, match=r"team-a-\*, bank"):
            names.check("bank", name)


def test_item_types_match_in_upper_case_and_with_underscores() -> None:
    names = Names(("team-a-*",))
    assert names.allow_type("TEAM_A_PAYOUT")
    assert names.allow_type("team-a-payout")
    assert not names.allow_type("TEAM_AB_PAYOUT")
    with pytest.raises(OutsideNames):
        names.check_type("TEAM_B_PAYOUT")


@pytest.mark.parametrize("value", [None, 5, ["team-a-x"]])
def test_what_is_no_name_is_outside(value: object) -> None:
    for check in (Names(("team-a-*",)).check, Names(("team-a-*",)).check_type):
        with pytest.raises(OutsideNames):
            check(value)


def test_without_patterns_every_name_is_allowed() -> None:
    assert not EVERY_NAME
    assert EVERY_NAME.allow("x")
    assert EVERY_NAME.allow_type("X")
    EVERY_NAME.check(None)


@pytest.mark.parametrize("pattern", ["", "*", "a b", "a*b", "**", "a\n", "\x00", "a" * 129, "team-a-* team-b-*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="for: "):
        checked_names([pattern])


def test_patterns_are_bounded() -> None:
    assert checked_names(["a", "a", "b*"]) == Names(("a", "b*"))
    with pytest.raises(InvalidInput, match="1000"):
        checked_names([f"team-{number:04}-*" for number in range(100)])
