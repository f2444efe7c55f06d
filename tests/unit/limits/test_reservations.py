"""Arguments of reservations, and what comes of a settlement."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput, NotFound
from paceline.limits.ports import Settlement
from paceline.limits.reservations import (
    ID_LENGTH,
    LONGEST_TTL,
    actual_links,
    check_actual,
    check_id,
    check_settlement,
    check_ttl,
)


def test_ids_are_short_and_printable() -> None:
    for good in ("a", "x" * ID_LENGTH, "ü 1"):
        assert check_id(good) == good
    for wrong in ("", "x" * (ID_LENGTH + 1), "a\nb", 7, None, b"a"):
        with pytest.raises(InvalidInput) as caught:
            check_id(wrong)
        assert caught.value.field == "id"


@given(st.floats(min_value=1e-9, max_value=LONGEST_TTL))
def test_a_time_to_live_is_at_least_a_microsecond(ttl: float) -> None:
    assert abs(check_ttl(ttl) - ttl * 1_000_000) <= 1
    assert check_ttl(ttl) >= 1


@pytest.mark.parametrize("ttl", [0, -1, LONGEST_TTL + 0.001, math.inf, math.nan, True, "5", None])
def test_what_is_no_time_to_live_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_ttl(ttl)
    assert caught.value.field == "ttl"


def test_the_longest_and_whole_seconds_are_taken() -> None:
    assert check_ttl(LONGEST_TTL) == 86_400_000_000
    assert check_ttl(1) == 1_000_000


def test_an_actual_cost_may_be_nothing() -> None:
    assert [check_actual(value) for value in (0, 1, 10**9)] == [0, 1, 10**9]
    for wrong in (-1, 1.0, True, "1", None):
        with pytest.raises(InvalidInput) as caught:
            check_actual(wrong)
        assert caught.value.field == "actual"


def test_actual_costs_are_one_for_all_links_or_by_plan() -> None:
    links = [("u", "requests", 1), ("u", "tokens", 2000)]
    assert actual_links(links, 7) == [("u", "requests", 7), ("u", "tokens", 7)]
    assert actual_links(links, {"tokens": 812}) == [("u", "requests", 1), ("u", "tokens", 812)]
    assert actual_links(links, {}) == links
    for wrong in (-1, True, {"tokens": 1.5}, {"silver": 1}):
        with pytest.raises(InvalidInput) as caught:
            actual_links(links, wrong)  # type: ignore[arg-type]
        assert caught.value.field == "actual"


def test_a_settlement_is_applied_once_and_an_unknown_one_is_an_error() -> None:
    assert check_settlement("r", Settlement.APPLIED)
    assert not check_settlement("r", Settlement.REPEATED)
    with pytest.raises(NotFound, match="reservation"):
        check_settlement("r", Settlement.UNKNOWN)
