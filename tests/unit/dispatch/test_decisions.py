"""The next change of an item after each event, field by field."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import (
    after_failure,
    after_hold,
    after_last_inquiry,
    after_silence,
    after_start,
    after_success,
    after_unknown,
    batch_name,
    gave_up,
    newer_context,
    released,
    start_delay,
    unrunnable,
    within_bytes,
)
from paceline.dispatch.encryption import PREFIX
from paceline.dispatch.model import (
    ENCRYPTED_VERSION,
    Action,
    AttemptEnd,
    AttemptOutcome,
    Change,
    Claim,
    ClaimedItem,
    Completion,
    SilentClaim,
)
from paceline.dispatch.ports import Execution, ExecutionState, Start, StartOutcome
from paceline.dispatch.status import Status

NOW = datetime(2027, 3, 1, tzinfo=UTC)
CONFIG = DispatchConfig(item_type="PAY", max_dispatch_retries=3, retry_backoff_secs=10, dispatch_interval_secs=5)
FIRST, LAST = Claim("PAY", "1", 7, 0), Claim("PAY", "1", 9, 2)
"""A claim with all retries left, and one whose next failure is its third."""
LOOK_AHEAD = timedelta(seconds=5)
READY, FAILED, DEAD = Status.READY, Status.FAILED, Status.DEAD_LETTER


def item(
    after: timedelta = timedelta(0), *, slotted: bool = False, context: str | None = None, version: int = 1
) -> ClaimedItem:
    return ClaimedItem(FIRST, NOW + after, slotted, context, None, version)


def test_an_item_is_delayed_until_its_time_and_jitter_is_for_those_without_a_slot() -> None:
    minute, jitter = timedelta(minutes=1), timedelta(milliseconds=CONFIG.jitter_window_ms // 4)
    assert start_delay(item(minute, slotted=True), CONFIG, NOW, lambda: 0.25) == minute
    assert start_delay(item(minute), CONFIG, NOW, lambda: 0.25) == minute + jitter
    assert start_delay(item(-minute), CONFIG, NOW, lambda: 0.25) == jitter, "it is late: at once"
    assert start_delay(item(-minute, slotted=True), CONFIG, NOW) == timedelta(0)


def test_a_start_is_recorded() -> None:
    started = after_start(LAST, StartOutcome(Start.STARTED, "detail"), CONFIG, "B")
    assert started == Change(LAST, (Status.DISPATCHED,), Action.DISPATCHED, 2, batch_id="B")
    again = after_start(LAST, StartOutcome(Start.ALREADY_STARTED), CONFIG, "B")
    assert again == started._replace(detail="already started")


def test_an_engine_without_capacity_counts_no_retry() -> None:
    change = after_start(LAST, StartOutcome(Start.EXHAUSTED, "full"), CONFIG, "B")
    assert change == Change(LAST, (READY,), Action.RELEASED, 2, batch_id="B", detail="engine exhausted: full")


def test_an_item_that_can_never_start_is_dead_lettered_alone() -> None:
    change = after_start(FIRST, StartOutcome(Start.POISONED, "too large"), CONFIG, "B")
    expected = Change(FIRST, (DEAD,), Action.DEAD_LETTERED, 0, "too large", batch_id="B", detail="too large")
    assert change == expected == unrunnable(FIRST, "too large", "B")
    assert unrunnable(FIRST, "a\nb") == expected._replace(error="a b", detail="a b", batch_id=None)


def test_a_failed_start_is_retried_with_a_growing_pause_until_the_maximum() -> None:
    outcome = StartOutcome(Start.FAILED, "refused")
    first = after_start(FIRST, outcome, CONFIG, "B")
    pause = timedelta(seconds=10) + LOOK_AHEAD
    assert first == Change(FIRST, (READY,), Action.START_FAILED, 1, "refused", pause, "B", "refused")
    second = after_start(FIRST._replace(retries=1), outcome, CONFIG, "B")
    assert (second.retries, second.pause) == (2, timedelta(seconds=20) + LOOK_AHEAD)
    last = after_start(LAST, outcome, CONFIG, "B")
    assert last == Change(LAST, (DEAD,), Action.DEAD_LETTERED, 3, "refused", batch_id="B", detail="refused")


def test_an_execution_that_ended_well_is_completed() -> None:
    assert after_success(LAST) == Change(LAST, (Status.COMPLETED,), Action.COMPLETED, 2)
    full = after_success(LAST, "found", '"x"')
    assert full == Change(LAST, (Status.COMPLETED,), Action.COMPLETED, 2, detail="found", result_json='"x"')


def test_an_execution_that_failed_is_retried_after_its_own_pause_or_the_configs() -> None:
    change = after_failure(FIRST, CONFIG, "boom")
    pause, ended = timedelta(seconds=10) + LOOK_AHEAD, AttemptEnd(AttemptOutcome.FAILED)
    assert change == Change(FIRST, (FAILED, READY), Action.FAILED, 1, "boom", pause, None, "boom", attempt=ended)
    assert after_failure(FIRST, CONFIG, "boom", timedelta(0)).pause == LOOK_AHEAD
    last = after_failure(LAST, CONFIG, "boom", timedelta(hours=1))
    assert last == Change(LAST, (FAILED, DEAD), Action.DEAD_LETTERED, 3, "boom", detail="boom", attempt=ended)


def test_a_silent_claim_is_what_the_engine_says() -> None:
    def seen(execution: Execution, status: Status, **state: object) -> Change | None:
        return after_silence(SilentClaim(FIRST, status, True), ExecutionState(execution, **state), CONFIG)  # type: ignore[arg-type]

    claimed, dispatched = Status.CLAIMED, Status.DISPATCHED
    assert seen(Execution.COMPLETED, claimed) == after_success(FIRST, "found completed")
    kept = seen(Execution.COMPLETED, dispatched, completion=Completion('"x"'))
    assert kept == after_success(FIRST, "found completed", '"x"')
    assert seen(Execution.FAILED, dispatched, detail="boom") == after_failure(FIRST, CONFIG, "boom")
    assert seen(Execution.FAILED, dispatched) == after_failure(FIRST, CONFIG, "found failed")
    adopted = Change(FIRST, (dispatched,), Action.ADOPTED, 0, detail="found running", seen=claimed)
    assert seen(Execution.RUNNING, claimed) == adopted
    assert seen(Execution.RUNNING, dispatched) is None
    assert seen(Execution.UNKNOWN, claimed) is None
    assert seen(Execution.UNKNOWN, dispatched) is None


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.DISPATCHED])
def test_a_lost_execution_counts_a_retry_if_nobody_changed_the_item_since(status: Status) -> None:
    lost = ExecutionState(Execution.NOT_FOUND)
    change = after_silence(SilentClaim(FIRST, status, True), lost, CONFIG)
    pause, error = timedelta(seconds=10) + LOOK_AHEAD, "execution lost"
    end = AttemptEnd(AttemptOutcome.UNKNOWN)
    expected = Change(FIRST, (FAILED, READY), Action.STALE_RECOVERED, 1, error, pause, None, error, status)
    assert change == expected._replace(attempt=end)
    last = after_silence(SilentClaim(LAST, status, True), lost, CONFIG)
    assert last is not None
    assert (last.path[-1], last.action, last.seen) == (DEAD, Action.DEAD_LETTERED, status)


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.DISPATCHED])
def test_a_lost_execution_that_never_began_counts_nothing(status: Status) -> None:
    change = after_silence(SilentClaim(LAST, status, False), ExecutionState(Execution.NOT_FOUND), CONFIG)
    detail = "claimed, never begun"
    assert change == Change(LAST, (READY,), Action.STALE_RECOVERED, LAST.retries, detail=detail, seen=status)


def test_an_execution_that_was_terminated_is_unknown_with_what_its_engine_said() -> None:
    state = ExecutionState(Execution.LOST, "TerminatedError: by an operator")
    change = after_silence(SilentClaim(FIRST, Status.DISPATCHED, True), state, CONFIG)
    assert change is not None
    assert (change.error, change.attempt) == (state.detail, AttemptEnd(AttemptOutcome.UNKNOWN))


def test_a_released_item_goes_back_as_it_was() -> None:
    assert released(LAST, "off") == Change(LAST, (READY,), Action.RELEASED, 2, detail="off")
    paused = released(LAST, "a\nb", "B", timedelta(1))
    assert paused == Change(LAST, (READY,), Action.RELEASED, 2, None, timedelta(1), "B", "a b")


def test_giving_up_ends_the_item_with_its_attempt() -> None:
    change = gave_up(LAST, "no\nsuch account", "REJECTED")
    assert change == Change(
        LAST,
        (FAILED, DEAD),
        Action.DEAD_LETTERED,
        2,
        "no such account",
        detail="no such account",
        verdict="REJECTED",
        last_attempt=3,
        attempt=AttemptEnd(AttemptOutcome.REFUSED),
    )
    assert gave_up(FIRST, "no").verdict is None


def test_a_context_that_this_process_can_not_read_waits_for_one_that_can() -> None:
    newer = newer_context(item(version=9), CONFIG, "B")
    assert newer == released(FIRST, newer.detail or "", "B", timedelta(seconds=15))
    assert newer.detail == ("its context has version 9, and this version of paceline reads 1: upgrade this process")
    hidden = newer_context(item(context=f"{PREFIX}key1:abc", version=ENCRYPTED_VERSION), CONFIG, "B")
    assert hidden.detail == (
        "its context is encrypted with the key key1, which this process does not have: give it the key"
    )
    assert (hidden.pause, hidden.batch_id) == (timedelta(seconds=15), "B")


@given(st.lists(st.integers(0, 10)), st.integers(0, 30))
def test_a_claim_takes_contexts_until_the_bound_is_crossed(sizes: list[int], most: int) -> None:
    taken = within_bytes(sizes, most)
    assert all(sum(sizes[:count]) < most for count in range(taken))
    assert taken == len(sizes) or sum(sizes[:taken]) >= most


def test_an_item_of_any_size_gets_its_turn() -> None:
    assert [within_bytes(sizes, 5) for sizes in ([100], [4, 100, 1], [5, 1], [])] == [1, 2, 1, 0]


def test_batches_have_names_of_their_own() -> None:
    names = {batch_name() for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"BATCH-[0-9a-f]{12}", name) for name in names)


@pytest.mark.parametrize("claim", [FIRST, LAST])
def test_an_unknown_outcome_is_retried_as_a_failure_is_unless_the_type_says_otherwise(claim: Claim) -> None:
    change, failure = after_unknown(claim, CONFIG, "reset"), after_failure(claim, CONFIG, "reset")
    assert change == failure._replace(attempt=AttemptEnd(AttemptOutcome.UNKNOWN))


@pytest.mark.parametrize("claim", [FIRST, LAST])
def test_an_unknown_outcome_is_held_for_as_long_as_the_type_says_and_then_a_dead_letter(claim: Claim) -> None:
    config = CONFIG.changed({"on_unknown": "hold", "hold_for_secs": 3600})
    change = after_unknown(claim, config, "reset", None, "trace")
    assert (change.path, change.action, change.retries) == ((Status.UNKNOWN,), Action.UNKNOWN, claim.retries + 1)
    assert (change.error, change.pause, change.in_doubt) == ("unknown: reset", timedelta(hours=1), True)
    assert change.attempt == AttemptEnd(AttemptOutcome.UNKNOWN, "trace")
    over = after_hold(claim)
    assert (over.path, over.origins, over.error) == ((DEAD,), (Status.UNKNOWN,), None), (
        "the error that says unknown stays"
    )


def test_an_unknown_outcome_is_inquired_also_after_the_last_attempt_and_then_held() -> None:
    config = CONFIG.changed({"on_unknown": "inquire", "hold_for_secs": 3600})
    for claim in (FIRST, LAST):
        change = after_unknown(claim, config, "reset")
        assert (change.path, change.retries, change.in_doubt) == ((READY,), claim.retries + 1, True)
        assert change.pause == timedelta(seconds=10) + LOOK_AHEAD
    used_up = LAST._replace(retries=3)
    assert after_unknown(used_up, config, "the inquiry died, too").path == (Status.UNKNOWN,)
    once = config.changed({"max_dispatch_retries": 0})
    assert after_unknown(FIRST, once, "reset").path == (READY,)
    last = after_last_inquiry(LAST, "no answer")
    assert (last.path, last.retries, last.error) == ((FAILED, DEAD), 2, "unknown: no answer")


@pytest.mark.parametrize(("on_unknown", "path"), [("hold", (Status.UNKNOWN,)), ("inquire", (READY,))])
def test_an_execution_that_began_and_was_lost_is_unknown(on_unknown: str, path: tuple[Status, ...]) -> None:
    config = CONFIG.changed({"on_unknown": on_unknown})
    lost = ExecutionState(Execution.NOT_FOUND)
    begun = after_silence(SilentClaim(FIRST, Status.DISPATCHED, True), lost, config)
    assert begun is not None
    assert (begun.path, begun.action, begun.seen, begun.in_doubt) == (
        path,
        Action.STALE_RECOVERED,
        Status.DISPATCHED,
        True,
    )
    never = after_silence(SilentClaim(FIRST, Status.DISPATCHED, False), lost, config)
    assert never is not None
    assert (never.path, never.retries, never.in_doubt) == ((READY,), 0, False)
