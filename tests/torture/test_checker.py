"""The checker finds what is planted, and nothing in histories that are as they should be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.torture import checker
from tests.torture.histories import Story

COUNTS = "limits are linearisable"
SPANS = "no span over its limit"
UNGUARDED = "nothing is admitted without the store"
WINDOWS = "no window over its limit"
ONE_SLOT = "an event has one slot"
NOT_EARLY = "no slot before its time"
SLOT_KEPT = "no acknowledged slot is lost"
WINDOW_COUNT = "a window's count is its number of slots"
TASK_KEPT = "no task is lost"
HAS_RUN = "what is completed has run"
FENCED = "an outdated claim writes nothing"
ONE_BEGIN = "a claim is executed once"
TASK_TIME = "no task before its time"
LIMIT = "never above the limit in a sliding second"
ONCE = "no payment twice without a lost answer"
WORD = "none final without the bank's word"
PAID = "no payment is lost"
CANCELLED = "a cancelled payment stays so"
PAY_TIME = "no payment before its time"
DELIVERED = "every accepted message is delivered"
NOT_REFUSED = "nothing that was refused is delivered"
QUOTA = "no quota is exceeded"
ONE_MESSAGE = "no message twice without a lost answer"
WORDS = "a service answers in its own words"
ALIVE = "no program ends by itself"


def rate(story: Story, plan: str, *times: float) -> Story:
    for at in times:
        request = {"key": plan, "plans": [plan], "cost": 1}
        story.call(at, at + 0.01, "limits.rate", request, allowed=True, remaining={plan: 0})
    return story


def slots(story: Story) -> Story:
    """Two versions of a policy: first two in a window, then one."""
    return story.stored("policy", version=1, most=2).stored("policy", version=2, most=1)


def cancel(story: Story, at: float, op: str, **request: str) -> Story:
    return story.call(at, at + 0.1, op, request)


GOOD: dict[str, Story] = {
    "nothing happened": Story(),
    "one after the other": Story().acquire(1, 2, 3).acquire(3, 4, 1, cost=2).acquire(5, 6, 1, cost=2, allowed=False),
    "at once, in the other order": Story().acquire(1, 9, 2).acquire(2, 8, 3),
    "a lost call that counted later": Story().lost(1).acquire(3, 4, 3).acquire(5, 6, 1),
    "a lost call that never counted": Story().lost(1).acquire(3, 4, 3).acquire(5, 6, 2),
    "lost calls of both kinds": Story()
    .lost(1, cost=2)
    .lost(1)
    .lost(2, "limits.refund")
    .acquire(5, 6, 1)
    .acquire(7, 8, 1, cost=1),
    "a lost reset": Story().acquire(1, 2, 1, cost=3).lost(3, "limits.reset").acquire(5, 6, 3),
    "a refund of more than was spent": Story()
    .acquire(1, 2, 3)
    .call(3, 4, "limits.refund", {"key": "k", "plans": ["wide"], "cost": 3})
    .acquire(5, 6, 3),
    "a chain that is denied spends nothing": Story()
    .call(1, 2, "limits.acquire", {"key": "k", "plans": ["narrow"], "cost": 3}, allowed=True, remaining={"narrow": 0})
    .call(
        3,
        4,
        "limits.acquire",
        {"key": "k", "plans": ["wide", "narrow"], "cost": 1},
        allowed=False,
        remaining={"wide": 4, "narrow": 0},
    ),
    "a span and a bucket": rate(rate(Story(), "span", 1, 2, 3.1, 4.2), "bucket", 1, 1.1, 2.2, 3.3),
    "a full window": slots(Story()).book(1, "a", "02.500").book(1, "b", "03.000").slot("a", 2.5).slot("b", 3.0),
    "room that a cancellation made": cancel(
        slots(Story()).book(1, "a", "02.500").book(1, "b", "03.000").book(2, "c", "03.500"),
        1.5,
        "slots.cancel",
        event="a",
    )
    .slot("b", 3.0)
    .slot("c", 3.5),
    "the same answer again": slots(Story()).book(1, "a", "02.500").book(2, "a", "02.500", existing=True).slot("a", 2.5),
    "a task that another took over": Story().task("a", 1, 2),
    "the bank at its limit": Story().submit("p", "PROCESSING").bank(1, "p").bank(2, "q").bank(2.5, "q").submit("q"),
    "a lost answer": Story()
    .submit("p", "PROCESSING")
    .bank(2, "p", 0)
    .bank(4, "p")
    .submit("r", "FAILED")
    .bank(5, "r", 422, executed=False),
    "a payment sent again in a fault": Story().submit("p", "PROCESSING").bank(2, "p").fault(3, 4).bank(6, "p"),
    "a payment sent again by a program without a core": Story()
    .submit("p", "PROCESSING")
    .bank(2, "p")
    .add(4, "starved", program="dispatcher-1", seconds=1.1)
    .bank(6, "p"),
    "delivered": Story().send("a").sms(2, "a").send("b", "refused").send("c", "unknown").sms(3, "c"),
    "delivered again in a fault": Story().send("a").sms(2, "a").fault(2, 3).sms(9, "a"),
    "a program that found no database": Story().fault(1, 2).add(9, "died", program="tasks-1", status=1),
    "503": Story().call(1, 2, "slots.book", {"event": "a"}, "unknown", status=503),
}
GOOD["the bank at its limit"].stored("payment", payment="q", status="PROCESSING").fault(2, 2.4)

PLANTED: dict[str, tuple[str, Story]] = {
    "a count that went back": (COUNTS, Story().acquire(1, 2, 3).acquire(3, 4, 3)),
    "a count that jumped": (COUNTS, Story().acquire(1, 2, 3).acquire(3, 4, 0)),
    "a denial with room": (COUNTS, Story().acquire(1, 2, 3).acquire(3, 4, 3, allowed=False)),
    "an admission without room": (COUNTS, Story().acquire(1, 2, 0, cost=4).acquire(3, 4, 0)),
    "a stale read": (
        COUNTS,
        Story()
        .acquire(1, 2, 3)
        .call(
            3,
            4,
            "limits.peek",
            {"key": "k", "plans": ["wide"], "cost": 1},
            allowed=True,
            remaining={"wide": 4},
        ),
    ),
    "a lost call that counted twice": (COUNTS, Story().lost(1).acquire(3, 4, 1)),
    "a lost call that counted before it began": (COUNTS, Story().acquire(1, 2, 2).lost(3)),
    "a chain that was denied, and spent": (
        COUNTS,
        Story()
        .call(1, 2, "limits.acquire", {"key": "k", "plans": ["narrow"], "cost": 3}, allowed=True, remaining={})
        .call(3, 4, "limits.acquire", {"key": "k", "plans": ["wide", "narrow"], "cost": 1}, allowed=False, remaining={})
        .acquire(5, 6, 2),
    ),
    "three in a span of two": (SPANS, rate(Story(), "span", 1, 2, 2.9)),
    "a bucket that gives too much": (SPANS, rate(Story(), "bucket", 1, 1.1, 1.2)),
    "admitted by guess": (
        UNGUARDED,
        Story().call(1, 2, "limits.rate", {"key": "k", "plans": ["span"]}, "unknown", degraded=True, allowed=True),
    ),
    "three in a window of two": (
        WINDOWS,
        slots(Story())
        .book(1, "a", "02.500")
        .book(1, "b", "03.000")
        .book(1, "c", "03.500")
        .slot("a", 2.5)
        .slot("b", 3.0)
        .slot("c", 3.5),
    ),
    "a booking above a lowered limit": (
        WINDOWS,
        slots(Story()).book(1, "a", "02.500").book(2, "b", "03.000", version=2).slot("a", 2.5).slot("b", 3.0),
    ),
    "two slots of one event": (
        ONE_SLOT,
        slots(Story()).book(1, "a", "02.500").book(2, "a", "03.500", existing=True).slot("a", 2.5),
    ),
    "new twice": (ONE_SLOT, slots(Story()).book(1, "a", "02.500").book(2, "a", "02.500").slot("a", 2.5)),
    "another slot in the database": (ONE_SLOT, slots(Story()).book(1, "a", "02.500").slot("a", 2.7)),
    "before it was requested": (NOT_EARLY, slots(Story()).book(0, "a", "01.500").slot("a", 1.5)),
    "in the past": (NOT_EARLY, slots(Story()).book(3, "a", "02.500").slot("a", 2.5)),
    "a slot that is gone": (SLOT_KEPT, slots(Story()).book(1, "a", "02.500")),
    "a counter that is wrong": (
        WINDOW_COUNT,
        slots(Story()).book(1, "a", "02.500").slot("a", 2.5).stored("window", window=1_803_916_802.0, taken=2),
    ),
    "a task that is gone": (
        TASK_KEPT,
        Story().call(1, 2, "tasks.enqueue", {"item": "a", "due": 0.0}),
    ),
    "a task that waits for ever": (TASK_KEPT, Story().task("a", status="READY")),
    "a task that never ran": (HAS_RUN, Story().task("a", settled=1)),
    "settled by the one who lost it": (FENCED, Story().task("a", 1, 2, settled=1)),
    "begun twice under one claim": (ONE_BEGIN, Story().task("a", 1, 1)),
    "begun too early": (TASK_TIME, Story().add(0.9, "begin", item="a", epoch=1, process=1).task("a", 2)),
    "three calls in a second of two": (
        LIMIT,
        Story().submit("p", "PROCESSING").bank(2, "p", 0).bank(2.5, "p", 0).bank(2.99, "p"),
    ),
    "paid twice": (ONCE, Story().submit("p", "PROCESSING").bank(2, "p").bank(9, "p")),
    "paid again long before a fault": (
        ONCE,
        Story().submit("p", "PROCESSING").bank(2, "p").fault(30, 31).bank(32, "p"),
    ),
    "paid again long after its program had no core": (
        ONCE,
        Story()
        .submit("p", "PROCESSING")
        .add(0.9, "starved", program="dispatcher-1", seconds=0.8)
        .bank(2, "p")
        .bank(9, "p"),
    ),
    "called done by guess": (WORD, Story().submit("p", "PROCESSING").bank(2, "p", 503, executed=False)),
    "called failed by guess": (WORD, Story().submit("p", "FAILED").bank(2, "p", 0)),
    "cancelled and paid": (
        WORD,
        cancel(Story().submit("p", "CANCELLED").bank(2, "p"), 1, "payments.cancel", payment="p"),
    ),
    "a payment that is gone": (PAID, Story().submit("p")),
    "a payment that waits for ever": (PAID, Story().submit("p", "SCHEDULED")),
    "cancelled in vain": (
        CANCELLED,
        cancel(Story().submit("p", "PROCESSING").bank(2, "p"), 1, "payments.cancel", payment="p"),
    ),
    "paid too early": (PAY_TIME, Story().submit("p", "PROCESSING").bank(0.9, "p")),
    "a message that is gone": (DELIVERED, Story().send("a")),
    "refused and delivered": (NOT_REFUSED, Story().send("a", "refused").sms(2, "a")),
    "three of two": (
        QUOTA,
        Story().send("a").send("b").send("c").sms(2, "a").sms(2, "b").sms(2, "c"),
    ),
    "four of two": (
        "nobody gets a second quota",
        Story().send("a").send("b").send("c").send("d").sms(2, "a").sms(2, "b").sms(2, "c").sms(2, "d"),
    ),
    "delivered twice": (ONE_MESSAGE, Story().send("a").sms(2, "a").sms(5, "a")),
    "a stack trace": (WORDS, Story().call(1, 2, "slots.book", {"event": "a"}, "unknown", status=500)),
    "a task from nowhere": (
        "only what was queued runs",
        Story().add(2, "begin", item="a", epoch=1, process=1),
    ),
    "completed twice": (
        "a task is completed once",
        Story().task("a", 1).stored("item", item="a", status="COMPLETED", epoch=1, completions=2),
    ),
    "cancelled by nobody": ("only callers cancel", Story().submit("p", "CANCELLED")),
    "a payment from nowhere": ("only what was submitted is paid", Story().bank(2, "p")),
    "a message from nowhere": ("only what was sent is delivered", Story().sms(2, "a")),
    "a worker that crashed": (ALIVE, Story().add(9, "died", program="tasks-1", status=1)),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert checker.check(GOOD[name].history) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    promise, story = PLANTED[name]
    assert {violation.promise for violation in checker.check(story.history)} == {promise}


def test_every_promise_has_a_planted_violation() -> None:
    """A rule that was never seen to fail may be one that can't."""
    source = "".join(path.read_text() for path in (Path(checker.__file__).parent).glob("*.py"))
    assert set(re.findall(r'Violation\(\s*"([^"]+)"', source)) == {promise for promise, _ in PLANTED.values()}
