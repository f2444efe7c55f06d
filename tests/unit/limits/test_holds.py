"""Holds never let more work in than the limit, whatever is cancelled when: a property of what was really admitted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.limits.model import Charge, FixedWindow, Rule, SlidingLog, SlidingWindow, Spec, TokenBucket
from paceline.limits.ports import Hold
from paceline.limits.stores.memory import MemoryLimitStore
from tests.effort import examples

T0 = 1_800_000_000_000_000
WINDOW = 1_000_000
SPAN = timedelta(microseconds=WINDOW)

steps = st.one_of(
    st.just(0),
    st.sampled_from(
        [1, WINDOW // 10, WINDOW // 2, WINDOW * 9 // 10, WINDOW - 1, WINDOW, WINDOW * 11 // 10, 2 * WINDOW]
    ),
    st.integers(0, 3 * WINDOW),
)
costs = st.integers(1, 6)
calls = st.one_of(
    st.tuples(steps, st.just("acquire"), costs),
    st.tuples(steps, st.just("fill"), st.just(1)),
    st.tuples(steps, st.just("fill"), st.just(1)),
    st.tuples(steps, st.just("hold"), costs),
    st.tuples(steps, st.just("settle"), st.sampled_from([0, 0, 0, 1, 2])),
    st.tuples(steps, st.just("settle"), st.just(0)),
    st.tuples(steps, st.just("refund"), st.just(0)),
)
days = st.lists(calls, min_size=4, max_size=25)
limits = st.integers(1, 6)


@dataclass
class Work:
    """Something that was admitted: when, in which window (by when the window ends), and what it really cost."""

    at: int
    window: int
    cost: int
    hold: str | None = None


def worked(spec: Spec, day: list[tuple[int, str, int]], *, refunds: bool = False) -> list[Work]:
    """What a day of calls really let run: everything admitted, at the cost it was settled at."""
    store, rule = MemoryLimitStore(), Rule("p", spec)
    done: list[Work] = []
    now = T0
    for number, (step, what, size) in enumerate(day):
        now += step
        if what in ("acquire", "hold", "fill"):
            charge = Charge("k", rule, min(size, spec.size))
            hold = Hold(f"h{number}", 10**15) if what == "hold" else None
            while (decision := store.decide([charge], hold=hold, now_us=now)).allowed:
                done.append(Work(now, now + decision.reset_after_us, charge.cost, hold.id if hold else None))
                if what != "fill":
                    break
        elif what == "settle":
            work = next((work for work in done if work.hold), None)
            if work is not None and work.hold is not None:
                actual = min(size, work.cost)
                assert store.settle(work.hold, [Charge("k", rule)], actual, now_us=now) == "APPLIED"
                work.cost, work.hold = actual, None
        elif refunds:
            # A refund without a hold must happen within the window.
            work = next(
                (work for work in reversed(done) if not work.hold and work.at > now - WINDOW and work.cost), None
            )
            if work is not None:
                store.refund([Charge("k", rule, work.cost)], now_us=now)
                work.cost = 0
    return done


@given(limits, days)
@settings(max_examples=examples(600), deadline=None)
def test_a_sliding_log_keeps_every_window(limit: int, day: list[tuple[int, str, int]]) -> None:
    done = worked(SlidingLog(limit, SPAN), day, refunds=True)
    for last in done:
        assert sum(work.cost for work in done if last.at - WINDOW < work.at <= last.at) <= limit


@given(limits, days)
@settings(max_examples=examples(600), deadline=None)
def test_a_fixed_window_keeps_its_limit(limit: int, day: list[tuple[int, str, int]]) -> None:
    done = worked(FixedWindow(limit, SPAN), day)
    for window in {work.window for work in done}:
        assert sum(work.cost for work in done if work.window == window) <= limit


@given(limits, days)
@settings(max_examples=examples(600), deadline=None)
def test_a_sliding_window_keeps_its_estimate(limit: int, day: list[tuple[int, str, int]]) -> None:
    done = worked(SlidingWindow(limit, SPAN), day)
    for number, last in enumerate(done):
        used = sum(work.cost for work in done[: number + 1] if work.window == last.window)
        before = sum(work.cost for work in done if work.window == last.window - WINDOW)
        in_view = Fraction(last.window - WINDOW - last.at, WINDOW)
        assert not last.cost or used + before * in_view <= limit


@given(limits, st.sampled_from([Fraction(1), Fraction(7, 3), Fraction(1, 5), Fraction(10)]), days)
@example(
    # The first hold is paid by the time it is cancelled; what is in line by then is the second one's.
    6,
    Fraction(1),
    [(0, "hold", 3), (3 * WINDOW, "hold", 3), (0, "fill", 1), (0, "settle", 0), (0, "fill", 1)],
)
@settings(max_examples=examples(600), deadline=None)
def test_a_token_bucket_keeps_every_span(capacity: int, rate: Fraction, day: list[tuple[int, str, int]]) -> None:
    done = worked(TokenBucket(capacity, rate), day)
    for first in range(len(done)):
        spent = 0
        for work in done[first:]:
            spent += work.cost
            assert spent <= capacity + rate * Fraction(work.at - done[first].at, 1_000_000)
