"""Where slots lie in the windows that a re-plan gives them: in order, inside their spans, counted where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import from_ms
from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotWindow, WindowPolicy
from paceline.slots.occupancy import CountedWindows, FullRun, Occupancy, WindowCount, full_runs
from paceline.slots.replan.assignment import Assignment, Candidate, Limits, PlannedConfig
from paceline.slots.replan.places import admitted, place, rejoined_runs, starts_near
from tests.effort import examples

SIZE = 4000


def slot(number: int, at: int, requested: int = 0) -> AssignedSlot:
    return AssignedSlot(f"e{number}", "bank", 1, requested, at // SIZE * SIZE, at, True)


def planned(policy: WindowPolicy, times: Sequence[int], name: str = "bank") -> PlannedConfig:
    counts = Counter(at // policy.size_ms * policy.size_ms for at in times)
    windows = [WindowCount(start, count, count) for start, count in sorted(counts.items())]
    return PlannedConfig(PolicyVersion(name, 2, policy, from_ms(0)), Occupancy(policy, CountedWindows(windows)))


@given(
    st.sampled_from(["even", "jitter"]),
    st.lists(st.tuples(st.integers(SIZE, 5 * SIZE - 1), st.integers(0, 5 * SIZE)), min_size=1, max_size=8),
    st.integers(0, SIZE - 1),
    st.data(),
)
@settings(max_examples=examples(300))
def test_slots_keep_their_order_and_lie_in_their_windows(
    spread: str, times: list[tuple[int, int]], floor: int, data: st.DataObject
) -> None:
    """Each goes to its own window or an earlier one, in order, and not before its requested time. The floor lies in the
    first of the windows that a plan gives, or before it."""
    policy = WindowPolicy(100, "PT4S", spread=spread)
    slots = [slot(number, at, min(asked, at)) for number, (at, asked) in enumerate(sorted(times))]
    config = planned(policy, [one.scheduled_ms for one in slots])
    assignments, last = [], floor // SIZE
    for one in slots:
        own = one.window_start_ms // SIZE
        first = max(last, one.requested_ms // SIZE)
        last = data.draw(st.integers(min(first, own), own))
        assignments.append(Assignment(Candidate(one), last * SIZE))

    moves = place(Limits(policy, 0), assignments, config, floor_ms=floor)

    new = {move.slot.event_id: move.scheduled_ms for move in moves}
    after = [new.get(one.event_id, one.scheduled_ms) for one in slots]
    assert after == sorted(after)
    for one, assignment, at in zip(slots, assignments, after, strict=True):
        assert assignment.window_ms <= at < assignment.window_ms + SIZE
        assert one.requested_ms <= at <= one.scheduled_ms
        assert at >= floor or at == one.scheduled_ms
    assert all(move.scheduled_ms != move.slot.scheduled_ms for move in moves)
    counts = Counter(at // SIZE * SIZE for at in after)
    assert all(config.occupancy.taken(start) == counts[start] for start in range(0, 5 * SIZE, SIZE))


def test_a_second_plan_moves_nothing() -> None:
    policy = WindowPolicy(10, "PT4S")
    slots = [slot(number, SIZE + 100 * number) for number in range(3)]
    config = planned(policy, [one.scheduled_ms for one in slots])
    assignments = [Assignment(Candidate(one), SIZE) for one in slots]
    assert place(Limits(policy, 0), assignments, config) == []
    assert config.before == {}


def test_a_dry_run_shows_the_places_that_the_plan_gives() -> None:
    policy = WindowPolicy(10, "PT4S", spread="jitter")
    slots = [slot(number, SIZE + 100 * number) for number in range(5)]
    assignments = [Assignment(Candidate(one), 0) for one in slots]
    runs = [place(Limits(policy, 0), assignments, planned(policy, [one.scheduled_ms for one in slots])) for _ in "ab"]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 5


def test_one_that_may_not_move_keeps_its_time_and_the_others_go_around_it() -> None:
    policy = WindowPolicy(10, "PT4S")
    fixed, other = slot(0, SIZE + 1000), slot(1, 2 * SIZE)
    config = planned(policy, [fixed.scheduled_ms, other.scheduled_ms])
    assignments = [Assignment(Candidate(fixed, may_move=False), SIZE), Assignment(Candidate(other), SIZE)]
    (move,) = place(Limits(policy, 0), assignments, config)
    assert move.slot is other
    assert fixed.scheduled_ms <= move.scheduled_ms < 2 * SIZE


def joint(at: int) -> AssignedSlot:
    """A slot under the bank's windows of four seconds and the merchant's of one."""
    others = (SlotWindow("merchant", 1, at // 1000 * 1000),)
    return AssignedSlot("e", "bank", 1, 0, at // SIZE * SIZE, at, True, None, others)


def test_a_slot_under_several_configs_lies_in_a_window_of_each() -> None:
    bank, merchant = WindowPolicy(5, "PT4S"), WindowPolicy(5, "PT1S")
    one = joint(9500)
    config, other = planned(bank, [9500]), planned(merchant, [9500], "merchant")
    assignment = Assignment(Candidate(one), SIZE, (SIZE, 6000))
    (move,) = place(Limits(bank, 0), [assignment], config, others={"merchant": other})
    assert 6000 <= move.scheduled_ms < 7000
    assert move.windows == (SlotWindow("bank", 2, SIZE), SlotWindow("merchant", 2, 6000))
    assert [(config.occupancy.taken(start), start) for start in (SIZE, 2 * SIZE)] == [(1, SIZE), (0, 2 * SIZE)]
    assert (other.occupancy.taken(6000), other.occupancy.taken(9000)) == (1, 0)


def test_a_move_is_admitted_while_its_window_has_a_place() -> None:
    policy = WindowPolicy(2, "PT4S")
    move = SlotMove(slot(0, 2 * SIZE), 0, 100)
    config = planned(policy, [1, 2 * SIZE])
    assert admitted(move, config) is move
    assert (config.occupancy.taken(0), config.occupancy.taken(2 * SIZE)) == (2, 0)
    assert admitted(SlotMove(slot(1, 3 * SIZE), 0, 200), planned(policy, [1, 2, 3 * SIZE])) is None, "it is full now"
    inside = SlotMove(slot(2, 300), 0, 100)
    assert admitted(inside, planned(policy, [1, 300])) is inside, "one that stays in its window needs no place"
    late = planned(policy, [1, 2 * SIZE])
    assert admitted(move, late, effective_ms=3000) is None, "the rest of the window offers less"


def test_a_move_is_not_admitted_where_the_configs_changed_meanwhile() -> None:
    move = SlotMove(slot(0, 2 * SIZE), 0, 1100)
    resized = planned(WindowPolicy(5, "PT1S"), [2 * SIZE])
    assert admitted(move, resized) is None
    closed = WindowPolicy(5, "PT4S", calendar={"zone": "UTC", "open": [{"from": "12:00", "to": "13:00"}]})
    assert admitted(move, planned(closed, [2 * SIZE])) is None
    bank = planned(WindowPolicy(5, "PT4S"), [9500])
    moved = SlotMove(joint(9500), SIZE, 6100, (SlotWindow("bank", 1, SIZE), SlotWindow("merchant", 1, 6000)))
    assert admitted(moved, bank) is None, "a config of the slot is gone"
    merchant = planned(WindowPolicy(5, "PT1S"), [9500], "merchant")
    again = admitted(moved, bank, {"merchant": merchant})
    assert again is not None
    assert again.windows == (SlotWindow("bank", 2, SIZE), SlotWindow("merchant", 2, 6000)), "the versions that admit it"


counts = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@pytest.mark.parametrize("hours", [None, [{"from": "00:00", "to": "00:02"}, {"from": "00:03", "to": "00:06"}]])
@given(counts, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
@settings(max_examples=examples(300))
def test_the_runs_after_a_plan_are_those_of_the_windows(
    hours: list[dict[str, str]] | None, taken: list[int], shifts: list[tuple[int, int]]
) -> None:
    """Minutes of which some may be closed; the stored runs are those before, and the changes make them those after."""
    calendar = None if hours is None else {"zone": "UTC", "open": hours}
    policy, minute = WindowPolicy(2, "PT1M", calendar=calendar), 60_000
    windows = [WindowCount(minute * n, count, count) for n, count in enumerate(taken)]
    config = PlannedConfig(
        PolicyVersion("bank", 1, policy, from_ms(0)), Occupancy(policy, CountedWindows([w for w in windows if w.taken]))
    )
    stored = full_runs(windows, policy)
    for before, after in shifts:
        if before != after and config.occupancy.taken(minute * before):
            config.shift(minute * before, minute * after)
    near = starts_near(config)
    known = {run for at in near for run in stored if run.start_ms <= at}
    changes = rejoined_runs(config, known)
    result = [run for run in stored if run.start_ms not in changes.removed] + changes.written
    counted = [WindowCount(minute * n, config.occupancy.taken(minute * n), 0) for n in range(6)]
    assert sorted(result) == full_runs(counted, policy)
    assert all(isinstance(run, FullRun) for run in changes.written)
