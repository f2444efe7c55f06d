"""The simulation of bookings agrees with queueing theory, and with plain counting."""

from __future__ import annotations

from statistics import fmean

import pytest
from benchmarks.scale.answers import DAILY, DAY_SECONDS, PEAK, PEAK_SECONDS, QUIET, backlog, saturated
from benchmarks.scale.model import POINTS, BatchTimes, Outcome, Scenario, simulate


def constant(
    fixed: float, per_call: float = 0.0, call_cpu: float = 0.0, cpu: float = 0.0, deaf: float = 0.0
) -> BatchTimes:
    """Batches that always take `fixed + per_call × size`."""
    sizes = (1, 1000)
    seconds = [[fixed + per_call * size] * POINTS for size in sizes]
    return BatchTimes(sizes, seconds, [cpu, cpu], [0.001, 0.001], call_cpu, [deaf, deaf])


def play(rate: float, times: BatchTimes, *, seconds: float = 20.0, workers: int = 1, http: float = 0.0) -> Outcome:
    return simulate(Scenario(rate, seconds, workers, http), times)


def test_a_lone_call_takes_its_batch_and_no_more() -> None:
    outcome = play(0.5, constant(0.001), seconds=200)
    assert outcome.delay(0.5) == pytest.approx(0.001)
    assert outcome.mean_batch == pytest.approx(1.0, abs=0.05)


def test_one_worker_is_a_queue_with_one_server() -> None:
    """M/M/1: the mean time in the system is 1 / (service rate - arrival rate)."""
    outcome = play(50, constant(1e-9), seconds=400, http=0.01)
    assert fmean(outcome.delays) == pytest.approx(1 / (100 - 50), rel=0.1)
    assert outcome.worker_busy == pytest.approx(0.5, rel=0.05)


def test_batches_grow_until_they_carry_the_load() -> None:
    """In balance a batch has as many calls as came during the one before: n = rate × (fixed + per call × n)."""
    rate, fixed, per_call = 5000.0, 0.002, 0.0001
    outcome = play(rate, constant(fixed, per_call))
    size = rate * fixed / (1 - rate * per_call)
    assert outcome.mean_batch == pytest.approx(size, rel=0.1)
    assert outcome.throughput == pytest.approx(rate, rel=0.05)


def test_nothing_is_answered_faster_than_the_row_allows() -> None:
    """64 workers with batches of one second each share one row: one batch a second, of a thousand at most."""
    outcome = play(5000, constant(1.0), seconds=5, workers=64)
    assert outcome.throughput < 1000
    assert outcome.row_busy == pytest.approx(1.0, abs=0.02)
    assert outcome.connections > 10


def test_several_configs_do_not_wait_for_each_other() -> None:
    one, four = (simulate(Scenario(2000, 5, 16, 0.0, configs), constant(0.0, 0.001)) for configs in (1, 4))
    assert one.throughput == pytest.approx(1000, rel=0.05)
    assert four.throughput == pytest.approx(2000, rel=0.05)


def test_every_call_is_answered_once_and_after_it_came() -> None:
    outcome = play(1000, constant(0.01, 0.0001), workers=4, http=0.001)
    assert outcome.delays[0] > 0.01
    assert len(outcome.delays) == pytest.approx(20_000, rel=0.05)


def test_callers_cpu_overlaps_with_the_wait_for_the_database() -> None:
    assert constant(0.01, cpu=0.002, call_cpu=0.0001).duration(20, 0.5) == pytest.approx(0.008)
    assert constant(0.01, cpu=0.009, call_cpu=0.0001).duration(20, 0.5) == pytest.approx(0.009)


def test_calls_that_come_while_a_process_only_computes_wait_for_the_batch_after_the_next() -> None:
    """All of them come during some batch: half of them in its deaf half, and these wait a batch longer."""
    hearing, deaf = (play(1000, constant(0.1, deaf=seconds)) for seconds in (0.0, 0.05))
    assert fmean(deaf.delays) - fmean(hearing.delays) == pytest.approx(0.05, rel=0.1)


def test_the_same_seed_is_the_same_outcome() -> None:
    assert play(500, constant(0.01), http=0.001) == play(500, constant(0.01), http=0.001)


def test_durations_lie_between_those_measured() -> None:
    times = BatchTimes((1, 10), [[0.01] * POINTS, [0.1] * POINTS], [0.0, 0.0], [0.0, 0.0], 0.0, [0.0, 0.0])
    assert [times.duration(size, 0.3) for size in (1, 4, 10, 19)] == pytest.approx([0.01, 0.04, 0.1, 0.19])


@pytest.mark.parametrize(
    ("worker", "row", "throughput", "named"),
    [(0.5, 1.0, 100, ""), (0.99, 0.4, 99, "a worker's core"), (0.2, 0.98, 90, "the config's row")],
)
def test_what_gives_way_is_named(worker: float, row: float, throughput: float, named: str) -> None:
    assert saturated({"rate": 100, "answered": throughput, "worker": worker, "row": row}) == named


def test_a_day_has_its_hundred_million_and_a_downstream_of_the_peak_leaves_nothing_waiting() -> None:
    events = PEAK * PEAK_SECONDS + QUIET * (DAY_SECONDS - PEAK_SECONDS)
    assert events == pytest.approx(DAILY)
    assert backlog(7000)["most"] == 0
    slow = backlog(2000)
    assert slow["most"] == pytest.approx((PEAK - 2000) * PEAK_SECONDS, rel=0.01)
    assert slow["emptyAgainSeconds"] == pytest.approx(PEAK_SECONDS + slow["most"] / (2000 - QUIET), rel=0.02)
