"""What a process has seen of its calls reaches the others, all of it and once."""

from __future__ import annotations

import asyncio

from paceline.downstream.adaptation import Report
from paceline.downstream.observations import REFRESH_SECONDS, Observations
from paceline.downstream.state import NO_CALLS, Totals
from paceline.errors import StoreUnavailable


class Store:
    """Adds up reports; away while `is_away`."""

    def __init__(self) -> None:
        self.totals, self.reports, self.waiting, self.is_away = NO_CALLS, list[Report](), list[int](), False
        self.reported = asyncio.Event()

    async def send(self, report: Report, totals: Totals, waiting: int) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.reports.append(report)
        self.waiting.append(waiting)
        self.totals = self.totals.plus(totals)
        self.reported.set()


def add(observations: Observations, **what: bool) -> None:
    kinds = {"throttled": False, "failed": False, "unknown": False, **what}
    observations.add(waited_us=5, latency_us=7, **kinds)


async def test_a_report_has_what_was_seen_since_the_last() -> None:
    store = Store()
    observations = Observations(store.send, lambda: 3)
    for what in ({}, {}, {"failed": True}, {"unknown": True}):
        add(observations, **what)
    await observations.flush()
    assert store.reports == [Report(2, 0, 2, 14, True)]
    assert store.totals == Totals(4, 0, 1, 1, 20)
    await observations.close()
    assert len(store.reports) == 1, "nothing was left"


async def test_a_refusal_is_reported_by_itself_and_soon() -> None:
    store = Store()
    observations = Observations(store.send, lambda: 0)
    add(observations, throttled=True)
    await asyncio.wait_for(store.reported.wait(), 10)
    assert store.reports == [Report(0, 1, 0, 0, False)]
    await observations.close()


async def test_what_could_not_be_sent_is_sent_with_the_next_report() -> None:
    store = Store()
    observations = Observations(store.send, lambda: 0)
    store.is_away = True
    add(observations)
    await observations.flush()
    store.is_away = False
    add(observations, failed=True)
    await observations.close()
    assert store.totals == Totals(2, 0, 1, 0, 10)


async def test_calls_that_wait_are_reported_again_and_when_none_does_any_more() -> None:
    store, now, waiting = Store(), [0.0], [2]
    observations = Observations(store.send, lambda: waiting[0], lambda: now[0])
    observations.begin()
    await asyncio.wait_for(store.reported.wait(), 10)
    await observations.flush()
    assert store.waiting == [2], "as many as before"
    now[0] += REFRESH_SECONDS
    await observations.flush()
    waiting[0] = 0
    await observations.flush()
    await observations.close()
    assert store.waiting == [2, 2, 0]
    assert {*store.reports} == {Report(is_waiting=True), Report()}
    assert store.totals == NO_CALLS
