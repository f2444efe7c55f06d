"""Fair turns: the pure order of lanes."""

from __future__ import annotations

import pytest

from paceline.dispatch.turns import checked_lane, checked_priority, in_turns, rotated
from paceline.errors import InvalidInput


def test_one_of_each_lane_in_turn_until_all_are_empty() -> None:
    lanes = ["aaaaa", "b", "cc"]
    assert "".join(in_turns([iter(lane) for lane in lanes], 100)) == "abcacaaa"
    assert "".join(in_turns([iter(lane) for lane in lanes], 4)) == "abca"
    assert list(in_turns([iter("a")], 0)) == []


def test_no_lane_is_read_further_than_it_must() -> None:
    million = iter(range(1_000_000))
    assert list(in_turns([million, iter([-1])], 3)) == [0, -1, 1]
    assert next(million) == 2


def test_turns_begin_behind_the_lane_that_was_served_last() -> None:
    assert rotated("cab", "") == ["a", "b", "c"]
    assert rotated("cab", "a") == ["b", "c", "a"]
    assert rotated("cab", "bb") == ["c", "a", "b"]
    assert rotated("cab", "c") == ["a", "b", "c"]


@pytest.mark.parametrize("lane", ["", " a", "a\n", "x" * 65, 7, b"a"])
def test_bad_lanes(lane: object) -> None:
    with pytest.raises(InvalidInput, match="lane"):
        checked_lane(lane)


@pytest.mark.parametrize("priority", [-1, 10, "5", 5.0, True])
def test_bad_priorities(priority: object) -> None:
    with pytest.raises(InvalidInput, match="priority"):
        checked_priority(priority)
