"""Which slots one transaction of a re-plan takes: it locks their configs once, at its start."""

from __future__ import annotations

from paceline.slots.model import AssignedSlot, SlotWindow
from paceline.slots.replan.assignment import Candidate
from paceline.slots.replan.run import few_others, until_stranger, without_strangers


def candidate(event_id: str, *others: str, may_move: bool = True) -> Candidate:
    windows = tuple(SlotWindow(name, 1, 0) for name in others)
    return Candidate(AssignedSlot(event_id, "bank", 1, 0, 0, 0, True, None, windows), may_move)


ALONE, KNOWN = candidate("alone"), candidate("known", "merchant-1")
STRANGER, FIXED = candidate("stranger", "merchant-2"), candidate("fixed", "merchant-2", may_move=False)
LOCKED = {"bank", "merchant-1"}


def test_slots_are_taken_up_to_one_whose_config_is_not_locked() -> None:
    assert until_stranger([ALONE, KNOWN, STRANGER, ALONE], LOCKED) == [ALONE, KNOWN]
    assert until_stranger([STRANGER, ALONE], LOCKED) == []
    assert until_stranger([ALONE, KNOWN], LOCKED) == [ALONE, KNOWN]


def test_one_that_stays_in_its_place_needs_no_lock() -> None:
    assert until_stranger([ALONE, FIXED, KNOWN], LOCKED) == [ALONE, FIXED, KNOWN]
    assert without_strangers([ALONE, FIXED, STRANGER], LOCKED) == [ALONE, FIXED, STRANGER._replace(may_move=False)]


def test_a_transaction_locks_a_bounded_number_of_further_configs() -> None:
    assert few_others("bank", [ALONE, KNOWN, FIXED, KNOWN, STRANGER, ALONE], 1) == [ALONE, KNOWN, FIXED, KNOWN]
