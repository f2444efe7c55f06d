"""Arguments of reservations, and what comes of a settlement."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput, NotFound
from paceline.limits.model import Charge, FixedWindow, Rule
from paceline.limits.ports import Settlement
from paceline.limits.reservations import (
    ID_LENGTH,
    LONGEST_TTL,
    check_actual,
    check_id,
    check_settlement,
    check_ttl,
    full_cost_first,
)

RULE = Rule("gold", FixedWindow(5, "PT1S"))


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


@given(st.lists(st.integers(1, 3)), st.integers(1, 3))
def test_charges_at_full_cost_come_first_and_the_others_keep_their_order(costs: list[int], full: int) -> None:
    chain = [Charge(str(number), RULE, cost) for number, cost in enumerate(costs)]
    ordered = full_cost_first(chain, full)
    split = costs.count(full)
    assert all(charge.cost == full for charge in ordered[:split])
    assert ordered[split:] == [charge for charge in chain if charge.cost != full]
    assert ordered[:split] == [charge for charge in chain if charge.cost == full]


def test_a_settlement_is_applied_once_and_an_unknown_one_is_an_error() -> None:
    assert check_settlement("r", Settlement.APPLIED)
    assert not check_settlement("r", Settlement.REPEATED)
    with pytest.raises(NotFound, match="reservation"):
        check_settlement("r", Settlement.UNKNOWN)
