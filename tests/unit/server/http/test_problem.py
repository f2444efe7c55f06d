from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from paceline import errors
from paceline.server.http import problem


@pytest.mark.parametrize(
    ("error", "status", "title"),
    [
        (errors.InvalidInput("event_id", "is bad"), 400, "Missing/Invalid Arguments"),
        (errors.ConfigurationError("max_per_window", "is bad"), 400, "Missing/Invalid Arguments"),
        (errors.CostExceedsCapacity("gold", 5, 1), 400, "Missing/Invalid Arguments"),
        (errors.NotFound("config", "x"), 404, "Config Not Found"),
        (errors.NotFound("user", "x"), 404, "User Not Found"),
        (errors.Conflict(), 409, "Conflict"),
        (errors.StoreUnavailable("db at 10.0.0.1 is down"), 503, "Store Unavailable"),
        (errors.SlotsExhausted("default", None), 503, "Slots Exhausted"),
        (errors.StoreError("relation x"), 500, "Internal Server Error"),
    ],
)
def test_every_error_has_its_status(error: errors.PacelineError, status: int, title: str) -> None:
    answer = problem.of(error)
    assert (answer.status, answer.body["status"], answer.body["title"]) == (status, status, title)
    assert answer.response().media_type == "application/problem+json"


@pytest.mark.parametrize("error", [errors.StoreUnavailable("db at 10.0.0.1"), errors.StoreError("db at 10.0.0.1")])
def test_internals_are_not_exposed(error: errors.StoreError) -> None:
    assert "10.0.0.1" not in str(problem.of(error).body)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("max_per_window", "maxPerWindow"),
        ("event_id", "eventId"),
        ("window", "window"),
        ("calendar.open[0].from", "calendar.open[0].from"),
        ("calendar.my_key", "calendar.my_key"),
        ("open_hours[1].end_time", "openHours[1].end_time"),
    ],
)
def test_a_field_is_named_as_it_stands_on_the_wire(field: str, name: str) -> None:
    assert problem.of(errors.InvalidInput(field, "is bad")).body["field"] == name


def test_exhaustion_says_when_to_come_back() -> None:
    earliest = datetime.now(UTC) + timedelta(hours=1)
    answer = problem.of(errors.SlotsExhausted("default", earliest))
    assert answer.body["earliest"].startswith(f"{earliest:%Y-%m-%dT%H:%M}")
    assert 3590 <= int(answer.headers["Retry-After"]) <= 3600


def test_a_lone_surrogate_does_not_break_the_answer() -> None:
    assert problem.invalid("\ud800", "is unknown").response().status_code == 400
