"""What is too late ends, unless its execution has begun."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from paceline.dispatch.changes import Expiry
from paceline.dispatch.model import Item
from paceline.dispatch.status import Status
from paceline.errors import Conflict

NOW = datetime(2027, 3, 1, tzinfo=UTC)
WAITS = Item("JOB", "a", Status.READY, NOW, NOW, False, None, None, None, 1, None, None, None, None, 0, None, NOW, NOW)
LATE = Expiry("it is too late")


@pytest.mark.parametrize("status", [Status.READY, Status.CLAIMED, Status.DISPATCHED])
def test_what_has_not_begun_becomes_a_dead_letter_with_the_reason(status: Status) -> None:
    expired = LATE.applied(replace(WAITS, status=status), NOW, is_followed=True)
    assert (expired.status, expired.last_error) == (Status.DEAD_LETTER, "it is too late")


@pytest.mark.parametrize("status", [Status.DISPATCHED, Status.COMPLETED, Status.UNKNOWN, Status.DEAD_LETTER])
def test_what_has_begun_or_ended_does_not_expire(status: Status) -> None:
    with pytest.raises(Conflict, match="does not wait"):
        LATE.applied(replace(WAITS, status=status, begun_at=NOW), NOW, is_followed=False)
