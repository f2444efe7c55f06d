"""The table of states: compared with its documentation, and with what reconciliation calls stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_payments.feeds.model import FeedState
from paceline_payments.lifecycle import (
    TABLE,
    TRANSITIONS,
    PaymentEvent,
    PaymentStatus,
    dead_letter_event,
    refusal,
)
from paceline_payments.reconciliation.model import ITEM_MAY_BE

PAGE = (Path(__file__).parents[4] / "docs/explanation/payments.md").read_text("utf-8")


def test_the_documented_table_is_the_code() -> None:
    for row in TABLE:
        item = "as it stands" if row.item is None else f"`{row.item}`"
        slot = "given back" if row.frees_slot else "kept"
        line = f"| `{row.event}` | {row.actor} | `{row.before}` | `{row.after}` | {item} | {slot} |"
        assert line in PAGE
    documented = [line for line in PAGE.splitlines() if line.endswith(("| kept |", "| given back |"))]
    assert len(documented) == len(TABLE)


@pytest.mark.parametrize("status", PaymentStatus)
def test_the_documented_statuses_are_the_code(status: PaymentStatus) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{status}` |") and line.count("|") == 4]
    following = {other for other in PaymentStatus if f"`{other}`" in line.split("|")[3]}
    assert following == TRANSITIONS[status] or status is PaymentStatus.ACCEPTED


@pytest.mark.parametrize("state", FeedState)
def test_the_documented_states_of_a_feed_are_the_code(state: FeedState) -> None:
    assert f"| `{state}` |" in PAGE


def test_no_row_of_the_table_leaves_what_reconciliation_calls_stuck() -> None:
    for row in TABLE:
        if row.item is not None and row.after in ITEM_MAY_BE:
            assert row.item in ITEM_MAY_BE[row.after]


@pytest.mark.parametrize(
    ("verdict", "begun", "event"),
    [
        (None, False, PaymentEvent.UNSENT),
        (None, True, PaymentEvent.LOST),
        ("REFUSED", True, PaymentEvent.REFUSED),
        ("LOST", False, PaymentEvent.LOST),
        ("UNSENT", True, PaymentEvent.UNSENT),
        ("CANCEL", False, PaymentEvent.UNSENT),
    ],
)
def test_what_a_dead_letter_means(verdict: str | None, begun: bool, event: PaymentEvent) -> None:
    assert dead_letter_event(verdict, begun=begun) is event


def test_what_has_begun_is_neither_cancelled_nor_discarded() -> None:
    for event in (PaymentEvent.CANCEL, PaymentEvent.DISCARD):
        assert refusal(PaymentStatus.SCHEDULED, event, begun=False) is None
        assert "begun" in str(refusal(PaymentStatus.SCHEDULED, event, begun=True))
    assert "ask there first" in str(refusal(PaymentStatus.UNKNOWN, PaymentEvent.RETRY, begun=True))
