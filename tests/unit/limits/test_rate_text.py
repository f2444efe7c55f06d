"""One rate as text: read as it is written, refused where no call could ever pass."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigurationError
from paceline.limits.rate_text import MAX_LENGTH, Rate, parse_rate

rates = st.builds(
    Rate,
    st.integers(1, 10**15),
    st.integers(1, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
    st.none() | st.integers(0, 10**15),
)


@given(rates)
def test_a_rate_is_read_as_it_is_written(rate: Rate) -> None:
    assert parse_rate(str(rate)) == rate
    assert rate.per_second * Fraction(rate.span / timedelta(microseconds=1)) == rate.limit * 1_000_000


@pytest.mark.parametrize(
    ("text", "limit", "span", "burst"),
    [
        ("10/minute", 10, timedelta(minutes=1), None),
        ("10 per min", 10, timedelta(minutes=1), None),
        ("5/10 seconds", 5, timedelta(seconds=10), None),
        ("5/2H", 5, timedelta(hours=2), None),
        ("1/w burst 3", 1, timedelta(weeks=1), 3),
        ("3/PT0.5S", 3, timedelta(milliseconds=500), None),
        ("7/1m30s", 7, timedelta(seconds=90), None),
        ("7 per 3 Days", 7, timedelta(days=3), None),
        ("7/250ms", 7, timedelta(milliseconds=250), None),
        ("100/300", 100, timedelta(seconds=300), None),
        ("5/month", 5, timedelta(days=30), None),
        ("5/2 years", 5, timedelta(days=730), None),
        ("3/pt0,5s BURST 9", 3, timedelta(milliseconds=500), 9),
    ],
)
def test_forms(text: str, limit: int, span: timedelta, burst: int | None) -> None:
    assert parse_rate(f" {text}\n") == Rate(limit, span, burst)


def test_a_rate_is_shown_by_its_unit_or_its_duration() -> None:
    assert str(Rate(10, timedelta(minutes=1))) == "10/minute"
    assert str(Rate(5, timedelta(seconds=10), 20)) == "5/PT10S burst 20"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ten/minute", "is not a rate"),
        ("10", "is not a rate"),
        ("10/ms", "is not a rate"),
        ("10/fortnight", "is not a rate"),
        ("5/2PT5S", "is not a rate"),
        ("1/999999999 weeks", "is not a rate"),
        ("١/minute", "is not a rate"),
        ("10/minute;5/second", "is not a rate"),
        ("10/minute" + " " * MAX_LENGTH, "is not a rate"),
        (10, "is not a rate"),
        (None, "is not a rate"),
        ("0/minute", "would never admit a call"),
        ("5/0 seconds", "would never admit a call"),
        ("5/PT0S", "would never admit a call"),
    ],
)
def test_what_is_no_rate_is_refused_with_an_example(text: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_rate(text, "burst_rate", "7/hour")
    assert caught.value.field == "burst_rate"
    assert "7/hour" in caught.value.problem
    assert len(str(caught.value)) < 250, "a long text is not repeated in full"
