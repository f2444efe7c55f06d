"""The shared state of a downstream, as values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.downstream.adaptation import Aimd, started
from paceline.downstream.state import (
    MAX_PAUSES,
    MAX_PROCESSES,
    NEW,
    WAITING_SECONDS,
    OpenBreaker,
    State,
    Totals,
    opened,
    probed,
    with_pause,
    with_waiting,
)

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def test_a_new_state_is_open_and_remembers_nothing() -> None:
    assert State.of_text(None) == State.of_text("") == NEW == State(None, {}, None)


@given(
    st.none() | st.text(),
    st.dictionaries(st.text(min_size=1), st.integers(0, 2**60), max_size=5),
    st.none() | st.builds(OpenBreaker, st.text(), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
def test_it_is_read_as_it_was_written(paused: str | None, pauses: dict[str, int], breaker: OpenBreaker | None) -> None:
    state = State(paused, pauses, breaker)
    assert State.of_text(state.to_text()) == state


def test_the_longest_pause_holds_and_those_that_ended_are_dropped() -> None:
    state = with_pause(NEW, "a", NOW + 5 * SECOND, NOW)
    state = with_pause(state, "a", NOW + SECOND, NOW)
    state = with_pause(state, "b", NOW + SECOND, NOW)
    assert state.pauses == {"a": NOW + 5 * SECOND, "b": NOW + SECOND}
    assert with_pause(state, "c", NOW + 9 * SECOND, NOW + SECOND).pauses.keys() == {"a", "c"}


def test_no_more_than_so_many_pauses_are_kept() -> None:
    state = NEW
    for number in range(MAX_PAUSES + 3):
        state = with_pause(state, str(number), NOW + (number + 1) * SECOND, NOW)
    assert len(state.pauses) == MAX_PAUSES
    assert "0" not in state.pauses


def test_a_probe_is_due_once_per_pause() -> None:
    state = opened(NEW, "down", SECOND, NOW)
    assert probed(state, 0, NOW + SECOND - 1) is state
    taken = probed(state, 3 * SECOND, NOW + SECOND)
    assert taken is not state
    assert probed(taken, 0, NOW + 4 * SECOND - 1) is taken
    assert probed(taken, 0, NOW + 4 * SECOND) is not taken
    again = opened(taken, "x" * 9999, 2 * SECOND, NOW + 5 * SECOND)
    assert again.breaker is not None
    assert (again.breaker.since_us, len(again.breaker.reason)) == (NOW, 2000)
    assert probed(NEW, 0, NOW) is NEW


def test_rates_and_totals_are_read_as_they_were_written() -> None:
    policy = Aimd(floor="1/second", ceiling="9/second")
    state = NEW._replace(rate="5/second", hard="9/second", estimate=started(policy, NOW), totals=Totals(5, 1, 2, 3, 4))
    assert State.of_text(state.to_text()) == state
    state = with_waiting(state, "a", 3, NOW)
    assert State.of_text(state.to_text()) == state
    assert state.totals.plus(Totals(1, 1, 1, 1, 1)) == Totals(6, 2, 3, 4, 5)


def test_what_waits_is_the_sum_of_what_processes_reported_lately() -> None:
    state = with_waiting(with_waiting(NEW, "a", 3, NOW), "b", 4, NOW + 1_000_000)
    assert (state.waiting_at(NOW), state.waiting_at(NOW, besides="a")) == (7, 4)
    assert state.waiting_at(NOW + WAITING_SECONDS * 1_000_000) == 4, "the other process has died"
    assert with_waiting(with_waiting(state, "a", 0, NOW), "b", 1, NOW).waiting_at(NOW) == 1


def test_no_more_than_so_many_processes_are_remembered() -> None:
    state = NEW
    for number in range(MAX_PROCESSES + 1):
        state = with_waiting(state, f"{number}", 1, NOW + number)
    assert (len(state.waiting), "0" in state.waiting) == (MAX_PROCESSES, False)
