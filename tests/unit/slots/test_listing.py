"""Listings: filters that are checked by their names on the wire, and cursors that come back as they were."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import LATEST_MS
from paceline.errors import InvalidInput
from paceline.slots.listing import (
    EVERYTHING,
    LONGEST_ACTOR,
    LONGEST_OWNER,
    LONGEST_REASON,
    Cancellation,
    Cursor,
    ListedSlot,
    SlotFilter,
    SlotStatus,
    is_latest_first,
)
from paceline.slots.model import AssignedSlot

ids = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1)


@given(st.integers(0, LATEST_MS), ids, st.integers(0, 2**63 - 1))
def test_a_cursor_comes_back_as_it_was(at: int, event_id: str, serial: int) -> None:
    cursor = Cursor(at, event_id, serial)
    assert Cursor.decoded(cursor.encoded()) == cursor
    assert cursor.encoded().isascii()
    assert "=" not in cursor.encoded()


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "ü",
        encoded("1\na"),
        encoded("1\na\n2\n3"),
        encoded("x\na\n0"),
        encoded("-1\na\n0"),
        encoded(f"{LATEST_MS + 1}\na\n0"),
        encoded("1\na\n-1"),
        encoded(f"1\na\n{2**63}"),
        "/w",
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cursor.decoded(text)
    assert caught.value.field == "cursor"


def test_a_filter_is_half_open_and_without_values_selects_everything() -> None:
    assert SlotFilter.of() == EVERYTHING == SlotFilter(None, 0, LATEST_MS, None, None)
    selection = SlotFilter.of("bank", "1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z", "CANCELLED", "")
    assert selection == SlotFilter("bank", 1000, 1000, SlotStatus.CANCELLED, "")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"since": "yesterday"}, "from"),
        ({"until": "tomorrow"}, "to"),
        ({"since": "2030-01-01T00:00:01Z", "until": "2030-01-01T00:00:00Z"}, "to"),
        ({"status": "booked"}, "status"),
        ({"owner": "x" * (LONGEST_OWNER + 1)}, "owner"),
        ({"owner": "a\nb"}, "owner"),
        ({"config_name": ""}, "config_name"),
    ],
)
def test_a_wrong_filter_is_refused_by_the_name_on_the_wire(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SlotFilter.of(**values)
    assert caught.value.field == field


def test_an_owner_may_be_as_long_as_that() -> None:
    assert SlotFilter.of(owner="x" * LONGEST_OWNER).owner == "x" * LONGEST_OWNER


def test_a_slot_that_was_cancelled_has_a_number_and_a_place_in_the_listing() -> None:
    slot = AssignedSlot("e", "bank", 1, 0, 1000, 1500, False)
    booked, cancelled = ListedSlot(slot, 5), ListedSlot(slot, 5, serial=3, cancelled_ms=9)
    assert (booked.status, cancelled.status) == (SlotStatus.BOOKED, SlotStatus.CANCELLED)
    assert (booked.cursor, cancelled.cursor) == (Cursor(1500, "e", 0), Cursor(1500, "e", 3))


def test_a_reason_is_kept_whole_and_an_actor_cut() -> None:
    assert Cancellation.of("x" * LONGEST_REASON, "a" * 100) == ("x" * LONGEST_REASON, "a" * LONGEST_ACTOR)
    assert Cancellation.of("", None) == Cancellation(None, None)
    for reason, actor, field in (
        ("x" * (LONGEST_REASON + 1), None, "reason"),
        ("a\x00", None, "reason"),
        (None, 5, "actor"),
    ):
        with pytest.raises(InvalidInput) as caught:
            Cancellation.of(reason, actor)  # type: ignore[arg-type]
        assert caught.value.field == field


def test_the_order_is_one_of_two() -> None:
    assert [is_latest_first(sort) for sort in (None, "scheduledTime", "-scheduledTime")] == [False, False, True]
    with pytest.raises(InvalidInput, match="scheduledTime"):
        is_latest_first("eventId")
