"""What a failure that has been to Temporal and back means for its item."""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TimeoutError, TimeoutType

from paceline import Discard, OutcomeUnknown, Retry
from paceline.dispatch.engines.temporal.failures import Ending, EndKind, ending
from paceline.dispatch.model import GiveUp
from paceline.errors import StoreUnavailable


def travelled(error: BaseException, raised: BaseException) -> BaseException:
    """As a workflow sees `raise error from raised` of its activity."""
    from temporalio.api.failure.v1 import Failure

    if error is not raised:
        error.__cause__ = raised
    failure, converter = Failure(), DefaultFailureConverter()
    converter.to_failure(error, PayloadConverter.default, failure)
    back = converter.from_failure(failure, PayloadConverter.default)
    assert isinstance(back, FailureError)
    return back


def seen(raised: BaseException) -> Ending:
    """What a workflow sees of what `execute` raised, without its traceback."""
    error = Ending.of(raised).as_error(type(raised).__name__)
    return ending(travelled(error, raised))._replace(traceback=None)


@pytest.mark.parametrize("raised", [GiveUp("closed", "REFUSED"), GiveUp("closed"), Discard("closed")])
def test_who_gives_up_gives_up_with_its_verdict(raised: GiveUp) -> None:
    assert seen(raised) == Ending("closed", EndKind.GAVE_UP, verdict=raised.verdict)


def test_a_retry_keeps_its_time() -> None:
    for raised, pause in ((Retry("busy", after="PT9M"), 540.0), (Retry("busy"), None)):
        assert seen(raised) == Ending("busy", pause=pause)


def test_an_unknown_outcome_stays_unknown_with_its_pause() -> None:
    last = OutcomeUnknown("nobody knows")
    last.is_over, last.pause = True, timedelta(seconds=7)
    assert seen(last) == Ending("nobody knows", EndKind.UNKNOWN, 7.0, is_over=True)
    assert seen(OutcomeUnknown("reset")) == Ending("reset", EndKind.UNKNOWN)


def test_a_failure_keeps_its_type_and_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        end = Ending.of(error)
    assert (end.reason, end.kind) == ("ValueError: boom", EndKind.FAILED)
    assert 'raise ValueError("boom")' in (end.traceback or "")
    assert seen(StoreUnavailable("away")).kind is EndKind.OUTAGE


def test_an_activity_that_said_nothing_is_lost_and_a_cancelled_one_unknown() -> None:
    timed_out = TimeoutError("heartbeat", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[])
    assert ending(travelled(timed_out, timed_out)).kind is EndKind.LOST
    assert ending(travelled(CancelledError(), CancelledError())).kind is EndKind.UNKNOWN


def test_what_business_code_raised_itself_is_a_failure_with_the_stack_that_travelled() -> None:
    try:
        raise ApplicationError("declined", type="Declined")
    except ApplicationError as error:
        end = ending(travelled(error, ValueError("cause")))
    assert (end.reason, end.kind) == ("ValueError: cause", EndKind.FAILED)
