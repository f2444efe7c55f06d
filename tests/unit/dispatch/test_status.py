"""The status machine: the table, and every step it does not allow."""

from __future__ import annotations

import itertools

import pytest

from paceline.dispatch.model import Action, Change, Claim
from paceline.dispatch.status import IN_FLIGHT, TRANSITIONS, Status, checked_step, may, origins
from paceline.errors import Conflict

LEGAL = {
    ("READY", "CLAIMED"),
    ("READY", "CANCELLED"),
    ("READY", "COMPLETED"),
    ("READY", "DEAD_LETTER"),
    ("CLAIMED", "DISPATCHED"),
    ("CLAIMED", "READY"),
    ("CLAIMED", "COMPLETED"),
    ("CLAIMED", "FAILED"),
    ("CLAIMED", "UNKNOWN"),
    ("CLAIMED", "DEAD_LETTER"),
    ("CLAIMED", "CANCELLED"),
    ("DISPATCHED", "READY"),
    ("DISPATCHED", "COMPLETED"),
    ("DISPATCHED", "FAILED"),
    ("DISPATCHED", "UNKNOWN"),
    ("DISPATCHED", "CANCELLED"),
    ("UNKNOWN", "READY"),
    ("UNKNOWN", "COMPLETED"),
    ("UNKNOWN", "DEAD_LETTER"),
    ("UNKNOWN", "CANCELLED"),
    ("FAILED", "READY"),
    ("FAILED", "DEAD_LETTER"),
    ("DEAD_LETTER", "READY"),
    ("DEAD_LETTER", "COMPLETED"),
    ("DEAD_LETTER", "CANCELLED"),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
def test_the_table_allows_exactly_the_documented_steps(before: Status, after: Status) -> None:
    assert may(before, after) == ((before, after) in LEGAL)
    if (before, after) in LEGAL:
        assert checked_step(before, after) is after
    else:
        with pytest.raises(Conflict, match=f"{before} can't become {after}"):
            checked_step(before, after)


def test_every_status_is_in_the_table_and_can_be_left_unless_final() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {status for status in Status if not TRANSITIONS[status]} == {Status.COMPLETED, Status.CANCELLED}


def test_a_path_through_an_illegal_step_is_refused() -> None:
    with pytest.raises(Conflict, match="COMPLETED can't become READY"):
        origins((Status.COMPLETED, Status.READY))
    with pytest.raises(Conflict, match="in flight"):
        origins((Status.CLAIMED,))


@pytest.mark.parametrize("seen", list(Status))
def test_a_change_leaves_only_what_was_seen(seen: Status) -> None:
    change = Change(Claim("T", "1", 1, 0), (Status.DISPATCHED,), Action.ADOPTED, 0, seen=seen)
    if seen is Status.CLAIMED:
        assert change.origins == (Status.CLAIMED,)
    else:
        with pytest.raises(Conflict):
            _ = change.origins
    assert change._replace(seen=None).origins == (Status.CLAIMED,)


def test_only_a_change_that_saw_an_item_unknown_ends_its_hold() -> None:
    change = Change(Claim("T", "1", 1, 0), (Status.DEAD_LETTER,), Action.DEAD_LETTERED, 0, seen=Status.UNKNOWN)
    assert change.origins == (Status.UNKNOWN,)
    assert Status.UNKNOWN not in change._replace(seen=None).origins


def test_outcomes_may_leave_either_status_in_flight() -> None:
    assert origins((Status.COMPLETED,)) == IN_FLIGHT
    assert origins((Status.FAILED, Status.READY)) == IN_FLIGHT
