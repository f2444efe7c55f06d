"""How many slots one transaction of a re-plan moves."""

from __future__ import annotations

from headgate.slots.replanning import CALM_SECONDS, FEWEST, MANY, SHORT_SECONDS, TARGET_SECONDS, Pace


def test_transactions_grow_while_nobody_waits_up_to_a_time() -> None:
    pace = Pace()
    assert pace.limit == FEWEST
    for step in range(1, 20):
        pace.adapt(step, 0.001, is_awaited=False)
        assert pace.limit == min(MANY, FEWEST * 2**step)
    pace.adapt(20, 4 * TARGET_SECONDS, is_awaited=False)
    assert pace.limit == MANY // 4


def test_whoever_waits_waits_for_few_until_it_has_been_calm() -> None:
    pace = Pace()
    for step in range(20):
        pace.adapt(step, 0.001, is_awaited=False)
    pace.adapt(100, TARGET_SECONDS, is_awaited=True)
    assert pace.limit == MANY * SHORT_SECONDS / TARGET_SECONDS
    pace.adapt(100.1, TARGET_SECONDS, is_awaited=True)
    assert pace.limit == FEWEST
    pace.adapt(100.1 + CALM_SECONDS / 2, 0.001, is_awaited=False)
    assert pace.limit == 2 * FEWEST, "as many as are moved in a short time"
    pace.adapt(100.2 + CALM_SECONDS / 2, SHORT_SECONDS, is_awaited=False)
    assert pace.limit == 2 * FEWEST
    pace.adapt(100.2 + CALM_SECONDS, SHORT_SECONDS, is_awaited=False)
    assert pace.limit == 4 * FEWEST
