"""How many slots one transaction of a re-plan moves, and how long it pauses for bookings that wait."""

from __future__ import annotations

import pytest

from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot
from paceline.slots.replan.run import (
    CALM_SECONDS,
    MOST_WHOLE,
    SHORT_SECONDS,
    TARGET_SECONDS,
    Chunk,
    Pace,
    Sizes,
)

MOVE = SlotMove(AssignedSlot("e", "c", 1, 0, 4000, 4000, False), 0, 0)

SIZES = Sizes()
FEWEST, MANY, PAUSE = SIZES.min_slots, SIZES.max_slots, SIZES.pause


def chunk(seconds: float, *, is_awaited: bool = False, moves: tuple[SlotMove, ...] = (MOVE,)) -> Chunk:
    return Chunk([], moves, None, is_awaited, seconds)


def test_transactions_grow_while_nobody_waits_up_to_a_time() -> None:
    pace = Pace(SIZES)
    assert pace.limit == FEWEST
    for step in range(1, 20):
        assert pace.adapt(step, chunk(0.001)) == 0
        assert pace.limit == min(MANY, FEWEST * 2**step)
    pace.adapt(20, chunk(4 * TARGET_SECONDS))
    assert pace.limit == MANY // 4


def test_slots_that_stay_are_passed_over_quickly_while_nobody_waits() -> None:
    pace = Pace(SIZES)
    pace.adapt(1, chunk(0.001, moves=()))
    assert pace.limit == 2 * FEWEST


def test_whoever_waits_waits_for_few_until_it_has_been_calm() -> None:
    pace = Pace(SIZES)
    for step in range(20):
        pace.adapt(step, chunk(0.001))
    assert pace.adapt(100, chunk(TARGET_SECONDS, is_awaited=True)) == pytest.approx(PAUSE * TARGET_SECONDS)
    assert pace.limit == MANY * SHORT_SECONDS / TARGET_SECONDS
    for step in range(4):
        pace.adapt(100.1 + step / 100, chunk(TARGET_SECONDS, is_awaited=True))
    assert pace.limit == FEWEST
    half = 100.1 + CALM_SECONDS / 2
    assert pace.adapt(half, chunk(SHORT_SECONDS / 2)) == pytest.approx(PAUSE * SHORT_SECONDS / 2), "it may come again"
    assert pace.limit == 2 * FEWEST, "as many as are moved in a short time"
    pace.adapt(half, chunk(SHORT_SECONDS / 10, moves=()))
    assert pace.limit == 2 * FEWEST, "slots that stayed do not say how long moving takes"
    assert pace.adapt(100.2 + CALM_SECONDS, chunk(SHORT_SECONDS)) == 0
    assert pace.limit == 4 * FEWEST


@pytest.mark.parametrize(("window", "least"), [(0, FEWEST), (201, 201), (1_000_000, MOST_WHOLE)])
def test_a_window_is_planned_as_a_whole_and_moved_in_pieces_while_somebody_waits(window: int, least: int) -> None:
    pace = Pace(SIZES, window)
    assert (pace.limit, pace.is_calm) == (least, True)
    for step in range(5):
        pace.adapt(step / 10, chunk(1.0, is_awaited=True))
    assert (pace.whole, pace.limit, pace.is_calm) == (least, FEWEST, False)
    pace.adapt(1 + CALM_SECONDS, chunk(0.001))
    assert (pace.is_calm, pace.limit) == (True, max(least, 2 * FEWEST))
