"""Attempts whose effect nobody knows, on every store and engine: retried, inquired or held, as the task says."""

from __future__ import annotations

import asyncio
import threading

from paceline import Discard, Done, NeverSeen, OutcomeUnknown, Snooze, Tasks, current_task
from paceline.dispatch.model import ItemDetail
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests.contracts.task_engines import ended, working


async def held(tasks: Tasks, item_type: str, item_id: str = "one") -> ItemDetail:
    queue = await tasks.queue()

    async def probe() -> ItemDetail | None:
        detail = await queue.show(item_type, item_id)
        return detail if detail.item.status is Status.UNKNOWN else None

    return await eventually(probe)


async def test_a_held_item_says_why_keeps_its_attempt_and_ends_as_an_operator_resolves_it(tasks: Tasks) -> None:
    runs = 0

    @tasks.task(on_unknown="hold", hold_for="PT1H")
    async def pay(number: int) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise OutcomeUnknown("connection reset")
        return f"paid {number} at attempt {current_task().attempt}"

    await pay.options(key="one").enqueue(7)
    async with working(tasks):
        detail = await held(tasks, "PAY")
        assert (detail.item.last_error, runs) == ("unknown: connection reset", 1)
        (attempt,) = detail.attempts
        assert (attempt.number, attempt.outcome, attempt.error) == (1, "unknown", "unknown: connection reset")
        assert attempt.began_at is not None
        assert 'raise OutcomeUnknown("connection reset")' in (attempt.traceback or "")
        queue = await tasks.queue()
        assert await queue.resolve("PAY", ["one"], "again", reason="not on the statement") == 1
        assert (await ended(pay, "one")).result == "paid 7 at attempt 2"


async def test_the_inquiry_decides_before_anything_is_repeated(tasks: Tasks) -> None:
    paid: list[int] = []
    asked: list[tuple[str, int, bool]] = []

    async def find(item_id: str, number: int) -> Done | NeverSeen:
        asked.append((item_id, number, current_task().in_doubt))
        if number == 3:
            raise Discard("no money")
        return Done("found") if number == 1 else NeverSeen()

    @tasks.task(on_unknown="inquire", inquire=find)
    async def pay(number: int) -> str:
        paid.append(number)
        if paid.count(number) == 1:
            raise OutcomeUnknown("connection reset")
        return "paid again"

    await pay.enqueue_many([pay.options(key=f"p{n}").call(n) for n in (1, 2, 3)])
    async with working(tasks):
        await (await tasks.queue()).configure("PAY", retry_backoff_secs=0)
        found, again, refused = [await ended(pay, f"p{n}") for n in (1, 2, 3)]
    assert (found.result, again.result) == ("found", "paid again")
    assert (refused.item.status, refused.item.last_error) == (Status.DEAD_LETTER, "no money")
    assert (sorted(paid), sorted(asked)) == ([1, 2, 2, 3], [(f"p{n}", n, True) for n in (1, 2, 3)])
    assert [detail.item.unknown_since for detail in (found, again, refused)] == [None] * 3


async def test_an_inquiry_that_decides_nothing_is_repeated_and_at_last_says_unknown(tasks: Tasks) -> None:
    paid, answers = 0, [Snooze(0), RuntimeError("no answer")]

    async def find(item_id: str) -> Done:
        if answers:
            raise answers.pop(0)
        return Done("found")

    @tasks.task(on_unknown="inquire", inquire=find, backoff=[0])
    async def patient() -> None:
        nonlocal paid
        paid += 1
        raise OutcomeUnknown("connection reset")

    async def never(item_id: str) -> Done:
        raise Snooze(0)

    @tasks.task(on_unknown="inquire", inquire=never, hold_for=0)
    async def hopeless() -> None:
        raise OutcomeUnknown("half an answer")

    await patient.options(key="one").enqueue()
    await hopeless.options(key="one").enqueue()
    async with working(tasks):
        for item_type in tasks.item_types:
            await (await tasks.queue()).configure(item_type, retry_backoff_secs=0)
        assert (await ended(patient, "one")).result == "found"
        detail = await ended(hopeless, "one")
    assert (paid, detail.item.status) == (1, Status.DEAD_LETTER)
    assert (detail.item.last_error or "").startswith("unknown: its hold is over; ")


async def test_a_timeout_is_unknown_also_that_of_a_plain_function(tasks: Tasks) -> None:
    gate, runs = threading.Event(), 0

    @tasks.task(timeout=0.2, on_unknown="hold")
    def plain() -> None:
        nonlocal runs
        runs += 1
        gate.wait(60)

    @tasks.task(timeout=0.2, on_unknown="hold")
    async def slow() -> None:
        await asyncio.Event().wait()

    try:
        await plain.options(key="one").enqueue()
        await slow.options(key="one").enqueue()
        async with working(tasks):
            for item_type in ("PLAIN", "SLOW"):
                detail = await held(tasks, item_type)
                assert "TimeoutError: it ran longer than 0.2 s" in (detail.item.last_error or "")
                assert [attempt.outcome for attempt in detail.attempts] == ["unknown"]
    finally:
        gate.set()
    assert runs == 1


async def test_each_attempt_that_fails_keeps_its_traceback(tasks: Tasks) -> None:
    @tasks.task(retries=1, backoff=[0])
    async def fails() -> None:
        raise ValueError(f"boom {current_task().attempt}")

    await fails.options(key="one").enqueue()
    async with working(tasks):
        attempts = (await ended(fails, "one")).attempts
    assert [(attempt.number, attempt.outcome) for attempt in attempts] == [(1, "failed"), (2, "failed")]
    for attempt in attempts:
        assert f"ValueError: boom {attempt.number}" in (attempt.traceback or "")
        assert 'raise ValueError(f"boom' in (attempt.traceback or "")
        assert attempt.worker is not None
