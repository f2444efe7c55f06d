"""Explanations against a naive model that remembers how full each window was when a slot was booked."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import from_ms, to_ms
from paceline.slots.explain import MOST_STEPS, Explanation, Reason, RemovedVersion, explain
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.windows import align
from paceline.testing.clock import FakeClock
from tests.models.slot_store import MemorySlotStore

T = to_ms(datetime(2027, 3, 1, 16, tzinfo=UTC))
HOURS = {"zone": "UTC", "open": [{"from": "15:59", "to": "16:00:20"}, {"from": "16:01", "to": "18:00"}]}
BLACKOUT = {"zone": "UTC", "blackouts": [{"from": "2027-03-01T16:00:06Z", "to": "2027-03-01T16:00:41Z"}]}

policies = st.builds(
    WindowPolicy,
    st.integers(1, 4),
    st.sampled_from(["PT1S", "PT4S", "PT7S"]),
    calendar=st.sampled_from([None, HOURS, BLACKOUT]),
    first_window=st.sampled_from(["proportional", "whole"]),
)


async def explained(policy: WindowPolicy, requested: list[int]) -> tuple[list[AssignedSlot], list[Explanation]]:
    store = MemorySlotStore(FakeClock(from_ms(T)), seed=1)
    await store.configure("c", policy)
    scheduler = SlotScheduler(store)
    requests = [SlotRequest(f"e{index}", at) for index, at in enumerate(requested)]
    booked = [slot for slot in await store.book("c", requests) if isinstance(slot, AssignedSlot)]
    return booked, [await scheduler.explain(slot.event_id) for slot in booked]


@given(policies, st.lists(st.integers(T - 3000, T + 9000), min_size=1, max_size=40))
async def test_each_window_that_was_passed_over_has_its_reason(policy: WindowPolicy, requested: list[int]) -> None:
    size, limit = policy.size_ms, policy.max_per_window
    taken: Counter[int] = Counter()
    for slot, explanation in zip(*await explained(policy, requested), strict=True):
        effective = max(slot.requested_ms, T)
        assert explanation.effective_ms == effective
        at = align(effective, size)
        for step in explanation.steps:
            assert step.window_start_ms == at
            for start in range(at, at + step.windows * size, size):
                is_open = policy.next_open(start) == start
                assert (step.reason is Reason.CLOSED) is not is_open
                if step.reason is Reason.FULL:
                    assert taken[start] >= limit
                if step.reason is Reason.PROPORTIONAL:
                    assert start == align(effective, size)
                    assert taken[start] >= limit * (start + size - effective) // size
            assert (step.rule is None) is (step.reason is not Reason.CLOSED)
            at += step.windows * size
        assert at == slot.window_start_ms, "the steps lead up to the slot's window, without a gap"
        taken[slot.window_start_ms] += 1


@given(policies, policies, st.lists(st.tuples(st.integers(0, 2), st.integers(T - 3000, T + 9000)), max_size=30))
async def test_under_several_configs_each_window_has_the_reason_of_its_own_config(
    a: WindowPolicy, b: WindowPolicy, requested: list[tuple[int, int]]
) -> None:
    store = MemorySlotStore(FakeClock(from_ms(T)), seed=1)
    by_name = {"a": a, "b": b}
    for name, policy in by_name.items():
        await store.configure(name, policy)
    scheduler = SlotScheduler(store)
    times: dict[str, list[int]] = {"a": [], "b": []}
    for index, (which, at) in enumerate(requested):
        names = (("a",), ("b",), ("a", "b"))[which]
        (slot,) = await store.book(names, [SlotRequest(f"e{index}", at)])
        assert isinstance(slot, AssignedSlot)
        explanation = await scheduler.explain(slot.event_id)
        effective = max(slot.requested_ms, T)
        for step in explanation.steps if slot.other_windows else ():
            policy = by_name[step.config_name]
            start, size, limit = step.window_start_ms, policy.size_ms, policy.max_per_window
            offered, is_first = limit, start == align(effective, size)
            lying = [time for time in times[step.config_name] if start <= time < start + size]
            has_room = len(lying) < limit
            if is_first and policy.first_window == "proportional":
                offered = limit * (start + size - effective) // size
                has_room = has_room and sum(time >= effective for time in lying) < offered
            assert has_room is (step.reason is Reason.JOINT) or step.reason is Reason.CLOSED
            assert (step.reason is Reason.PROPORTIONAL) <= (is_first and offered < limit)
        for window in slot.windows:
            times[window.config_name].append(slot.scheduled_ms)
        (again,) = await store.book(names, [SlotRequest("again", at)])
        assert isinstance(again, AssignedSlot)
        assert explanation.today.window_start_ms == again.window_start_ms
        await store.cancel("again")


async def test_windows_of_a_policy_that_is_not_known_are_left_out() -> None:
    store = MemorySlotStore(FakeClock(from_ms(T)), seed=1)
    for name in ("a", "b"):
        await store.configure(name, WindowPolicy(1, "PT4S"))
    await store.book(("a", "b"), [SlotRequest(f"e{n}", T) for n in range(2)])
    record = await store.record("e1")
    assert record is not None
    known = {version.name: version for version in await store.configs()}
    gone = RemovedVersion("a", 1, False, None)
    for then in ({"b": known["b"]}, {}):
        explanation = await store.survey_joint(("a", "b"), partial(explain, record, then, [gone]))
        assert {step.config_name for step in explanation.steps} == set(then)
        assert (explanation.then, explanation.removed) == (None, (gone,))
        assert explanation.today.window_start_ms == T + 8000


async def test_it_names_the_rule_that_closes_a_window() -> None:
    calendar = {
        "zone": "America/New_York",
        "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "09:00", "to": "17:00"}],
        "holidays": "US",
        "blackouts": [{"from": "2027-07-02T12:00:00Z", "to": "2027-07-02T21:00:00Z"}],
    }
    friday = to_ms(datetime(2027, 7, 2, 13, tzinfo=UTC))  # the holiday of the fourth, a Sunday, is on Monday
    _, (explanation,) = await explained(WindowPolicy(1, "PT1H", calendar=calendar), [friday])
    rules = [(step.reason, step.rule) for step in explanation.steps]
    assert {rule for _, rule in rules} == {"blackouts", "open", "holidays"}
    assert {reason for reason, _ in rules} == {Reason.CLOSED}


async def test_a_long_backlog_is_counted_and_not_walked() -> None:
    _, explanations = await explained(WindowPolicy(1, "PT1S"), [T] * (MOST_STEPS + 50))
    steps = explanations[-1].steps
    assert len(steps) == MOST_STEPS + 1
    assert sum(step.windows for step in steps) == MOST_STEPS + 49


async def test_it_says_what_would_happen_today() -> None:
    store = MemorySlotStore(FakeClock(from_ms(T)), seed=1)
    scheduler = SlotScheduler(store)
    await store.configure("c", WindowPolicy(1, "PT4S"))
    await store.book("c", [SlotRequest(f"e{n}", T) for n in range(3)])
    assert (await scheduler.explain("e2")).today.window_start_ms == T + 12_000
    await store.configure("c", WindowPolicy(4, "PT4S"))
    explanation = await scheduler.explain("e2")
    assert explanation.today.window_start_ms == T
    assert explanation.then is not None
    assert (explanation.then.version, explanation.active.version) == (1, 2)
    assert [step.reason for step in explanation.steps] == [Reason.FULL, Reason.FULL]
    await store.configure("c", WindowPolicy(1, "PT4S", max_delay="PT2S"))
    today = (await scheduler.explain("e2")).today
    assert (today.window_start_ms, today.earliest_ms) == (None, T + 12_000)


@pytest.mark.parametrize("first_window", ["proportional", "whole"])
async def test_a_lone_event_under_a_small_limit(first_window: str) -> None:
    noon = to_ms(datetime(2027, 3, 2, 12, tzinfo=UTC))
    (slot,), (explanation,) = await explained(WindowPolicy(1, "P1D", first_window=first_window), [noon])
    reasons = [step.reason for step in explanation.steps]
    assert reasons == ([] if first_window == "whole" else [Reason.PROPORTIONAL])
    assert slot.window_start_ms == align(noon, 86_400_000) + 86_400_000 * len(reasons)
