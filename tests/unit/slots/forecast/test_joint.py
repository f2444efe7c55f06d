"""The forecast under several configs equals the booking, window by window."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.durations import to_ms
from paceline.errors import InvalidInput
from paceline.slots.booking.packer import Packer, Place
from paceline.slots.forecast.forecast import Forecast
from paceline.slots.forecast.joint import Detail, joint_forecast
from paceline.slots.model import WindowPolicy
from paceline.slots.windows import align
from tests.effort import examples
from tests.unit.slots.booking.test_packer import NOW, policies, side


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_what_is_forecast_is_what_is_booked(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(policies(), min_size=2, max_size=4))
    held = []
    for policy in chosen:
        fills = data.draw(st.lists(st.integers(0, policy.max_per_window), max_size=12))
        first = align(NOW, policy.size_ms)
        held.append({first + n * policy.size_ms: taken for n, taken in enumerate(fills) if taken})
    events, requested = data.draw(st.integers(1, 60)), data.draw(st.integers(NOW - 20, NOW + 250))
    pairs = list(zip(chosen, held, strict=True))
    shown = joint_forecast([side(f"c{n}", *pair) for n, pair in enumerate(pairs)], NOW, events, requested)
    packer = Packer([side(f"c{n}", *pair) for n, pair in enumerate(pairs)], NOW, random.Random(1).random)
    places = [place for place in (packer.place(requested) for _ in range(events)) if isinstance(place, Place)]
    assert (shown.placed, shown.refused) == (len(places), events - len(places))
    assert {to_ms(window.start): window.added for window in shown.windows} == Counter(
        place.window_start_ms for place in places
    )
    assert shown.config_names == tuple(f"c{n}" for n in range(len(chosen)))
    for window in shown.windows:
        assert window.taken == held[0].get(to_ms(window.start), 0)
    if places:
        assert shown.window_count == len({place.window_start_ms for place in places})
        assert shown.drained_by is not None
        assert max(place.scheduled_ms for place in places) < to_ms(shown.drained_by)
        assert shown.drain[-1][1] == shown.refused


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_skipped_periods_are_filled_as_if_one_by_one(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(policies(), min_size=2, max_size=4))
    held = [
        {
            align(NOW, policy.size_ms) + n * policy.size_ms: 1
            for n in data.draw(st.lists(st.integers(0, 200), max_size=3))
        }
        for policy in chosen
    ]
    events, requested = data.draw(st.integers(1, 2000)), data.draw(st.integers(NOW - 20, NOW + 250))
    short = data.draw(st.sampled_from([1, 2, 100]))

    def shown(fewest: int) -> Forecast:
        sides = [side(f"c{n}", policy, counts) for n, (policy, counts) in enumerate(zip(chosen, held, strict=True))]
        return joint_forecast(sides, NOW, events, requested, Detail(min_skipped=fewest, peak_sample=3, short=short))

    skipping, stepping = shown(2), shown(10**9)
    assert skipping.windows[:3] == stepping.windows[:3]
    for field in ("placed", "refused", "window_count", "first_window", "last_window", "drained_by", "next_windows"):
        assert getattr(skipping, field) == getattr(stepping, field), field
    assert skipping.drain[-1:] == stepping.drain[-1:]


@pytest.mark.parametrize("other", [WindowPolicy(4, "PT4S"), WindowPolicy(50_000, "P1D"), WindowPolicy(1, "PT0.7S")])
def test_a_million_events_one_by_one_take_few_steps(other: WindowPolicy) -> None:
    for sides in ([WindowPolicy(1, "PT1S"), other], [other, WindowPolicy(1, "PT1S")]):
        configs = [side(f"c{n}", policy) for n, policy in enumerate(sides)]
        shown = joint_forecast(configs, 0, 1_000_000, 0, Detail(max_steps=25_000))
        assert shown.placed == 1_000_000


def test_a_million_events_behind_a_backlog_take_few_steps() -> None:
    bank = side("bank", WindowPolicy(1000, "PT4S"), {n * 4000: 1000 for n in range(50_000)})
    merchant = side("merchant", WindowPolicy(2000, "PT1M"))
    shown = joint_forecast([merchant, bank], 0, 1_000_000, 0)
    assert shown.placed == 1_000_000
    assert shown.window_count == 500, (
        "the rest of the minute in which the bank's backlog ends is enough for two windows"
    )


def test_what_reaches_too_far_is_refused_by_name() -> None:
    few = Detail(max_steps=1000)
    booked = {n * 2000: 1 for n in range(2000)}
    sides = [side("a", WindowPolicy(1, "PT1S"), booked), side("b", WindowPolicy(9, "PT1S"))]
    assert joint_forecast(sides, 0, 999, 0, few).placed == 999
    with pytest.raises(InvalidInput, match="too far"):
        joint_forecast(sides, 0, 1001, 0, few)
    with pytest.raises(InvalidInput):
        joint_forecast(sides, 0, 0, 0, few)
