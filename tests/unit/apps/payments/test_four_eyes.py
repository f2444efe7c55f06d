"""Four eyes: who may release a feed, when a retry is confirmed, and what comes in beside feeds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from paceline.errors import Conflict
from paceline_payments.feeds.model import Feed, FeedState
from paceline_payments.four_eyes import (
    RETRY_REQUESTED,
    FeedsAlone,
    ReleaseRequired,
    SecondPersonRequired,
    check_release,
    is_retry_confirmed,
    retry_requested_by,
)
from paceline_payments.model import AcceptedPayment, PaymentAudit, PaymentStatus
from tests.unit.apps.payments.bench import Bench, payment

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)
HELD = Feed("f", "csv", FeedState.HELD, None, None, 1, 1, 0, 0, 0, 0, {}, {}, None, AT, AT, submitted_by="ann")


def event(status: str, detail: str | None = None, actor: str | None = "execution") -> PaymentAudit:
    return PaymentAudit(None, status, detail, AT, actor)


LOST = [event("SCHEDULED", actor="ann"), event("UNKNOWN")]
BY_ANN = [*LOST, event("UNKNOWN", RETRY_REQUESTED, "ann")]


def test_another_person_than_the_submitter_releases() -> None:
    assert check_release(HELD, "ben")
    with pytest.raises(SecondPersonRequired, match="ann submitted"):
        check_release(HELD, "ann")
    with pytest.raises(SecondPersonRequired, match="nobody knows"):
        check_release(replace(HELD, submitted_by=None), "ben")


@pytest.mark.parametrize("state", [FeedState.ACCEPTING, FeedState.DONE])
def test_a_second_press_is_nothing_and_a_third_person_has_nothing_to_release(state: FeedState) -> None:
    released = replace(HELD, state=state, released_by="ben")
    assert not check_release(released, "ben")
    for other in ("ann", "cem"):
        with pytest.raises(Conflict, match="released by ben"):
            check_release(released, other)


@pytest.mark.parametrize("state", [FeedState.RECEIVING, FeedState.REFUSED, FeedState.CANCELLED])
def test_what_is_not_held_is_not_released(state: FeedState) -> None:
    for released_by in (None, "ben"):
        with pytest.raises(Conflict, match=state):
            check_release(replace(HELD, state=state, released_by=released_by), "ben")


def test_a_retry_of_what_was_never_in_doubt_needs_one_person() -> None:
    refused = [event("SCHEDULED", actor="ann"), event("FAILED")]
    assert is_retry_confirmed("p", PaymentStatus.FAILED, refused, "ann")


@pytest.mark.parametrize("status", [PaymentStatus.UNKNOWN, PaymentStatus.FAILED])
def test_a_retry_of_what_is_or_was_in_doubt_needs_two(status: PaymentStatus) -> None:
    history = LOST if status is PaymentStatus.UNKNOWN else [*LOST, event("FAILED")]
    assert not is_retry_confirmed("p", status, history, "ann")
    history = [*history, event(status, RETRY_REQUESTED, "ann")]
    assert retry_requested_by(history) == "ann"
    assert is_retry_confirmed("p", status, history, "ben")
    with pytest.raises(SecondPersonRequired, match="ann requested"):
        is_retry_confirmed("p", status, history, "ann")


def test_a_later_event_withdraws_the_request() -> None:
    history = [*BY_ANN, event("FAILED", "the inquiry found it REJECTED", "ben")]
    assert retry_requested_by(history) is None
    assert not is_retry_confirmed("p", PaymentStatus.FAILED, history, "ben")
    assert not is_retry_confirmed("p", PaymentStatus.FAILED, history, "ann")


def test_what_the_bank_executed_needs_no_second_person() -> None:
    assert is_retry_confirmed("p", PaymentStatus.ACCEPTED, [*LOST, event("ACCEPTED")], "ann")


async def test_payments_come_as_feeds_alone(bench: Bench) -> None:
    intake = FeedsAlone(bench.intake)
    with pytest.raises(ReleaseRequired, match="POST /api/v1/feeds"):
        await intake.submit(payment("p"))
    assert [type(result) for result in await intake.initiate([payment("p"), payment("q")])] == [ReleaseRequired] * 2
    assert await bench.depth() == 0
    (accepted,) = await intake.initiate([payment("p")], feed_id="f")
    assert isinstance(accepted, AcceptedPayment)
