"""Wire shapes: parsed with errors that name the member, made from the domain's objects."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from paceline.server.shapes.shape import Instant, InvalidMember, Shape
from paceline_payments import parsing
from paceline_payments.service.shapes.payments import PaymentRequest
from paceline_sms.service.shapes.notifications import NotificationConfigRequest

REQUEST = {"userId": 1, "rateLimit": 2, "timeWindow": 3}


QUOTA_MEMBERS = "userId, rateLimit, timeWindow, algorithm, unit, phone, locale, zone"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"userId": None}, "userId: is required"),
        ({"userId": True}, "userId: must be a whole number from 0 to 2147483647"),
        ({"userId": "1"}, "userId: must be a whole number from 0 to 2147483647"),
        ({"rateLimit": 0}, "rateLimit: must be a whole number from 1 to 2147483647"),
        (
            {"rate_limit": 5},
            f"rate_limit: is unknown; known are {QUOTA_MEMBERS}",
        ),
        # A misspelt member is missing, too; what was typed wrong is named.
        (
            {"userId": None, "usrId": 1},
            f"usrId: is unknown; known are {QUOTA_MEMBERS}",
        ),
    ],
)
def test_a_wrong_member_is_named_as_it_was_typed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidMember) as raised:
        NotificationConfigRequest.parse(REQUEST | changes)
    assert str(raised.value) == message


class Inner(NamedTuple):
    started_at: datetime
    ended_ms: int


class Outer(NamedTuple):
    name: str
    inner: Inner


class InnerShape(Shape):
    started_at: Instant
    ended_ms: Instant


class OuterShape(Shape):
    name: str
    inner: InnerShape
    note: str | None = None


def test_a_shape_is_made_from_attributes_and_dumps_only_what_it_was_given() -> None:
    outer = Outer("a", Inner(datetime(2027, 3, 1, 16, tzinfo=UTC), 0))
    times = {"startedAt": "2027-03-01T16:00:00.000Z", "endedMs": "1970-01-01T00:00:00.000Z"}
    assert OuterShape.of(outer).dump() == {"name": "a", "inner": times}
    assert OuterShape.of(outer, note=None).dump() == {"name": "a", "inner": times, "note": None}
    assert OuterShape.of(Outer("b", outer.inner), outer).name == "a"


def test_a_payment_has_the_members_that_the_payments_application_reads() -> None:
    assert tuple(field.alias for field in PaymentRequest.model_fields.values()) == parsing.MEMBERS


def test_what_is_nested_deeply_is_dumped() -> None:
    class Holder(Shape):
        the_context: Any
        created_at: Instant

    context: Any = {}
    for _ in range(900):
        context = {"a": context}
    holder = Holder.of(the_context=context, created_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert holder.dump() == {"theContext": context, "createdAt": "2030-01-01T00:00:00.000Z"}
    assert json.loads(holder.dump_json()) == holder.dump()
