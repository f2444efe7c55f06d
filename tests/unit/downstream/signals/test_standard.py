"""What servers say of their limits in standard and common fields."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from paceline.downstream.signals.standard import ServiceLimit, pause_of, retry_after, service_limits

NOW = 1_800_000_000


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        ('"default";r=50;t=30', [ServiceLimit("default", 50, 30)]),
        ('"a";r=1;t=2, "b";r=0', [ServiceLimit("a", 1, 2), ServiceLimit("b", 0, None)]),
        ('"a,b;r=9";r=1;t=2', [ServiceLimit("a,b;r=9", 1, 2)]),
        ('"a\\"b";r=1', [ServiceLimit('a\\"b', 1, None)]),
        ('"a";r=0;t=7;pk=:QXBwLTk5OQ==:', [ServiceLimit("a", 0, 7)]),
        ("", []),
        ("limit=100, remaining=50, reset=5", []),
        ('"a";r=-1', []),
        ('"a";r=x;t=1', []),
        ('"a";r=1.5', []),
        ('"a";r=9999999999999999', []),
        ('"a', []),
        (";;;,,,===", []),
    ],
)
def test_rate_limit_fields_are_understood_or_ignored(value: str, limits: list[ServiceLimit]) -> None:
    assert service_limits(value) == limits


def test_retry_after_may_be_seconds_or_a_date() -> None:
    assert retry_after("120") == 120
    assert retry_after(" 0 ") == 0
    soon = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert soon is not None
    assert 55 < soon <= 60
    assert retry_after("Fri, 31 Dec 1999 23:59:59 GMT") == 0
    assert retry_after("9" * 400) == 1e15
    assert retry_after("Mon, 01 Jan 99999999999999999999 00:00:00 GMT") is None
    for wrong in ("", "soon", "-1", "1.5", "Fri, 99 Dec 1999", "٣"):
        assert retry_after(wrong) is None


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"Retry-After": "7", "RateLimit": '"a";r=0;t=99'}, 7),
        (503, {"Retry-After": "7"}, 7),
        (301, {"Retry-After": "7"}, 0),
        (403, {"Retry-After": "7"}, 7),
        (429, {"Retry-After": "7", "retry-after-ms": "6500"}, 6.5),
        (429, {"Retry-After": "7", "retry-after-ms": "soon"}, 7),
        (200, {"RateLimit": '"a";r=0;t=3, "b";r=0;t=5, "c";r=1;t=60'}, 5),
        (200, {"RateLimit": '"a";r=1;t=3'}, 0),
        (429, {"Retry-After": "nonsense", "RateLimit": '"a";r=0;t=3'}, 3),
        (429, {}, 0),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "8"}, 8),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(NOW + 9)}, 9),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str((NOW + 9) * 1000)}, 9),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(NOW - 9)}, 0),
        (200, {"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "8"}, 0),
        (429, {"X-RateLimit-Reset": "8"}, 8),
        (429, {"Retry-After": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "8"}, 2),
        (200, {"RateLimit": '"a";r=0;t=3', "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "8"}, 3),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "8", "X-RateLimit-Reset-After": "2.5"}, 2.5),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "6"}, 6),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"}, 0),
        (200, {"X-RateLimit-Remaining": "none", "X-RateLimit-Reset": "8"}, 0),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "nan"}, 0),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9" * 40}, 0),
        (200, {"X-RateLimit-Remaining": "0"}, 0),
    ],
)
def test_what_a_response_asks_for(status: int, headers: dict[str, str], wait: float) -> None:
    assert pause_of(status, headers.get, NOW) == wait
