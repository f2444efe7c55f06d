"""Concurrent callers of the same work share one run of it, its result and its error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.errors import StoreUnavailable
from paceline.redis.single_flight import SingleFlight
from tests.interruptions import Interrupted, in_a_thread, interrupt_often


class Work:
    """Ends when the test lets it."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.runs = 0
        self.started, self.ends = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> int:
        self.runs += 1
        number = self.runs
        self.started.release()
        assert self.ends.acquire(timeout=20)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return number


def test_callers_share_the_run_in_flight_and_later_ones_begin_another() -> None:
    flights, work = SingleFlight(), Work()
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(flights.run, work) for _ in range(4)]
        assert work.started.acquire(timeout=20)
        work.ends.release(2)
        results = {call.result(20) for call in calls}
    assert work.runs == max(results) <= 2  # a caller may have come after the end of the first run
    work.ends.release()
    assert flights.run(work) == work.runs > max(results)


def test_callers_share_an_error() -> None:
    flights, work = SingleFlight(), Work(StoreUnavailable("down"), StoreUnavailable("down"))
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(flights.run, work) for _ in range(4)]
        assert work.started.acquire(timeout=20)
        work.ends.release(2)
        for call in calls:
            with pytest.raises(StoreUnavailable):
                call.result(20)
    assert work.runs <= 2


def test_an_interruption_does_not_reach_the_callers_that_wait() -> None:
    flights, work = SingleFlight(), Work(Interrupted())
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(flights.run, work) for _ in range(2)]
        work.ends.release(2)
        outcomes = {type(call.exception(20)) for call in calls}
    assert outcomes == {Interrupted, type(None)}


def test_after_interruptions_the_work_is_run_by_another_thread() -> None:
    flights = SingleFlight()
    interrupt_often(lambda: flights.run(lambda: 42), 2_000)
    assert in_a_thread(lambda: flights.run(lambda: 43)) == 43
