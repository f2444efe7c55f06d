"""Log lines and spans of the scheduler: one line per transaction, single slots in detail."""

from __future__ import annotations

import logging

import pytest

from paceline.durations import from_ms
from paceline.errors import SlotsExhausted, StoreUnavailable
from paceline.slots.booking.packing import Booking
from paceline.slots.events import log_bookings, log_cache_miss, log_change, log_contention, trace_bookings
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest, TracedRequest, WindowPolicy


def slot(event_id: str, *, existing: bool = False) -> AssignedSlot:
    return AssignedSlot(event_id, "bank", 1, 0, 4000, 4100, existing)


def logged(caplog: pytest.LogCaptureFixture, level: int, *bookings: Booking) -> list[tuple[str, str]]:
    caplog.clear()
    batch = [
        SlotRequest(booking.event_id if isinstance(booking, AssignedSlot) else f"r{number}", 0)
        for number, booking in enumerate(bookings)
    ]
    with caplog.at_level(level, "paceline.slots"):
        log_bookings("bank", batch, bookings)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_one_new_slot_is_logged_with_its_window(caplog: pytest.LogCaptureFixture) -> None:
    line = "Assigned slot for eventId=a in window=1970-01-01T00:00:04.000Z"
    assert logged(caplog, logging.INFO, slot("a")) == [("INFO", line)]
    assert caplog.records[0].__dict__["event_id"] == "a"
    assert caplog.records[0].__dict__["config"] == "bank"
    assert logged(caplog, logging.WARNING, slot("a")) == []


def test_many_are_one_line_and_each_only_in_detail(caplog: pytest.LogCaptureFixture) -> None:
    bookings = [slot("a", existing=True), slot("b"), slot("c")]
    total = ("INFO", "Assigned 2 slots of bank, the first for eventId=b")
    assert logged(caplog, logging.INFO, *bookings) == [total]
    assert [level for level, _ in logged(caplog, logging.DEBUG, *bookings)] == ["INFO", "DEBUG", "DEBUG", "DEBUG"]
    assert logged(caplog, logging.DEBUG, slot("a", existing=True)) == [("DEBUG", "Idempotent hit for eventId=a")]


def test_refusals_are_an_error_that_names_the_first(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = logged(caplog, logging.ERROR, slot("a"), SlotsExhausted("bank", None))
    assert line[0] == "ERROR"
    assert "event r1 after searching bank" in line[1]
    (line,) = logged(caplog, logging.ERROR, *[SlotsExhausted("bank", None)] * 3)
    assert "event r0 (and 2 more)" in line[1]


def test_a_change_shows_the_limit_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    versions = [PolicyVersion("bank", n, WindowPolicy(10 * n, "PT4S"), from_ms(0)) for n in (3, 2, 1)]
    with caplog.at_level(logging.INFO, "paceline.slots"):
        log_change(versions[2], versions[2:])
        log_change(versions[0], versions)
        log_contention("bank")
        log_cache_miss("bank")
    assert caplog.messages == [
        "Config created: bank maxPerWindow=10",
        "Config updated: bank maxPerWindow=20->30",
        "Window contention on bank: another writer was first, trying again",
        "Config cache miss for bank, loaded from DB",
    ]


def test_requests_outside_a_trace_make_no_span() -> None:
    plain = SlotRequest("a", 0)
    assert not isinstance(plain, TracedRequest)
    trace_bookings("bank", [plain], [slot("a")])
    trace_bookings("bank", [plain], StoreUnavailable("down"))
