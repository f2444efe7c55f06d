"""What a failure that has been to Temporal and back means for its item."""

from __future__ import annotations

import pytest
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import FailureError

from paceline import Discard, Retry
from paceline.dispatch.engines.temporal.failures import Ending, ending, gave_up, retry
from paceline.dispatch.model import GiveUp


def travelled(error: BaseException, raised: BaseException) -> BaseException:
    """As a workflow sees `raise error from raised` of its activity."""
    from temporalio.api.failure.v1 import Failure

    error.__cause__ = raised
    failure, converter = Failure(), DefaultFailureConverter()
    converter.to_failure(error, PayloadConverter.default, failure)
    back = converter.from_failure(failure, PayloadConverter.default)
    assert isinstance(back, FailureError)
    return back


@pytest.mark.parametrize("raised", [GiveUp("closed", "REFUSED"), GiveUp("closed"), Discard("closed")])
def test_who_gives_up_gives_up_with_its_verdict(raised: GiveUp) -> None:
    assert ending(travelled(gave_up(raised), raised)) == Ending("closed", gave_up=True, verdict=raised.verdict)


def test_a_retry_keeps_its_time() -> None:
    for raised, pause in ((Retry("busy", after="PT9M"), 540.0), (Retry("busy"), None)):
        assert ending(travelled(retry(raised), raised)) == Ending("busy", pause=pause)
