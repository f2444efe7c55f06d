"""The in-process engine beyond the contract: bounds, guards, signs of life, closing."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.current_task import CurrentTask, current_task
from paceline.dispatch.decisions import released
from paceline.dispatch.model import Claim, EnqueueRequest
from paceline.dispatch.ports import Start, StartRequest
from paceline.dispatch.status import Status
from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from tests.models.held_starts import HeldStarts
from tests.unit.dispatch.local_bench import NO_DELAY, Bench, Turnstile


async def test_no_more_run_at_once_than_allowed_and_the_rest_follows() -> None:
    bench = Bench(concurrency=2)
    assert bench.room() == 2
    await bench.start("a", "b", "c")
    await eventually(lambda: len(bench.began) == 2)
    assert bench.room() == 0
    bench.gate.set()
    await eventually(lambda: len(bench.began) == 3)
    await bench.engine.close()
    assert await bench.depth() == {Status.COMPLETED: 3}
    assert bench.room() == 0


async def test_an_execution_that_has_ended_leaves_nothing_for_the_garbage_collector() -> None:
    bench, seen = Bench(), list[weakref.ref[CurrentTask]]()

    async def note_task(_item_id: str, _context: Any) -> None:
        seen.append(weakref.ref(current_task()))

    bench.behave = note_task
    gc.disable()
    try:
        await bench.start("a", "b")
        await bench.engine.drained()
        assert [task() for task in seen] == [None, None]
    finally:
        gc.enable()
    await bench.engine.close()


async def test_a_plain_function_is_a_handler_too() -> None:
    bench, ran_on = Bench(), []

    def handle(item_id: str, context: Any) -> None:
        ran_on.append(threading.current_thread())

    bench.registry.register("PLAIN", handle)
    await bench.store.configure(DispatchConfig(item_type="PLAIN"))
    await bench.store.enqueue([EnqueueRequest.of("PLAIN", "a")])
    (item,) = (await bench.store.claim("PLAIN", 1, NO_DELAY)).items
    await bench.engine.start([StartRequest(item.claim, DispatchConfig(item_type="PLAIN"), "{}", NO_DELAY)])
    await bench.engine.drained()
    found = await bench.store.find("PLAIN", "a")
    assert found is not None
    assert found[0].status is Status.COMPLETED
    assert [thread is threading.main_thread() for thread in ran_on] == [False]
    await bench.engine.close()


async def test_an_execution_begins_only_when_its_plan_admits_it() -> None:
    turnstile = Turnstile()
    bench = Bench(limits=HeldStarts(turnstile))
    bench.gate.set()
    await bench.start("a", "b", admission_plan="tps50")
    await eventually(lambda: turnstile.calls)
    assert (turnstile.calls, bench.began) == ([("tps50", "WORK")], [])
    turnstile.gate.release()
    await eventually(lambda: len(turnstile.calls) == 2)
    assert bench.began == ["a"]
    turnstile.gate.release()
    await eventually(lambda: len(bench.began) == 2)
    await bench.engine.close()


async def test_who_waits_for_a_plan_is_given_back_when_the_kill_switch_is_thrown() -> None:
    turnstile = Turnstile()
    bench = Bench(limits=HeldStarts(turnstile))
    await bench.start("a", admission_plan="tps50")
    await eventually(lambda: turnstile.calls)
    await bench.store.configure((await bench.configure()).changed({"enabled": False}))

    async def back() -> bool:
        return await bench.status("a") is Status.READY

    await eventually(back)
    assert bench.began == []
    await bench.engine.close()


async def test_who_is_admitted_calls_at_once_whatever_the_store_does() -> None:
    """A look at the store between the admission and the call would let calls bunch beyond the plan."""
    turnstile = Turnstile()
    bench = Bench(limits=HeldStarts(turnstile))
    await bench.start("a", admission_plan="tps50")
    await eventually(lambda: turnstile.calls)
    bench.store.answering.clear()
    turnstile.gate.release()
    await eventually(lambda: bench.began == ["a"], within=10)
    bench.store.answering.set()
    bench.gate.set()
    await bench.engine.close()


async def test_a_plan_that_can_not_be_asked_fails_the_run() -> None:
    class Broken:
        async def admit(self, plan: str, key: str) -> None:
            raise ValueError("no such plan")

    bench = Bench(limits=HeldStarts(Broken()))
    await bench.start("a", admission_plan="tps50", max_dispatch_retries=1)

    async def dead() -> bool:
        return await bench.status("a") is Status.DEAD_LETTER

    await eventually(dead)
    await bench.engine.close()


async def test_an_outcome_is_reported_until_the_store_takes_it() -> None:
    bench = Bench()
    bench.store.failures = 3
    bench.gate.set()
    await bench.start("a")

    async def completed() -> bool:
        return await bench.status("a") is Status.COMPLETED

    await eventually(completed)
    assert bench.began == ["a"]
    await bench.engine.close()


async def test_long_runs_show_signs_of_life() -> None:
    bench = Bench()
    await bench.start("a", stale_claim_threshold_mins=0.005)
    first = await bench.seen_at("a")

    async def seen() -> bool:
        return await bench.seen_at("a") != first

    await eventually(seen)
    bench.gate.set()
    await bench.engine.close()


async def test_a_run_that_must_show_life_often_does_so_beside_patient_ones() -> None:
    """The heart is in the middle of a long pause when the run begins."""
    bench = Bench()
    await bench.start("patient", stale_claim_threshold_mins=60)
    await asyncio.sleep(0)
    await bench.start("urgent", stale_claim_threshold_mins=0.01)
    first = await bench.seen_at("urgent")

    async def seen() -> bool:
        return await bench.seen_at("urgent") != first

    await eventually(seen, within=5)
    bench.gate.set()
    await bench.engine.close()


async def test_a_run_whose_claim_was_lost_is_stopped_and_reports_nothing() -> None:
    bench = Bench()
    (claim,) = await bench.start("a", stale_claim_threshold_mins=0.005)
    await eventually(lambda: bench.began)
    await bench.store.settle([released(claim, "recovered elsewhere")])

    async def gone() -> bool:
        (state,) = await bench.engine.describe([claim])
        return state.execution == "NOT_FOUND"

    await eventually(gone)
    assert await bench.status("a") is Status.READY
    await bench.engine.close()


async def test_a_new_claim_of_a_run_that_still_goes_on_is_taken_over() -> None:
    bench = Bench()
    (old,) = await bench.start("a")
    await eventually(lambda: bench.began)
    await bench.store.settle([released(old, "taken for dead")])
    (item,) = (await bench.store.claim("WORK", 1, NO_DELAY)).items
    request = StartRequest(item.claim, await bench.configure(), "{}", NO_DELAY)
    assert [outcome.start for outcome in await bench.engine.start([request])] == [Start.ALREADY_STARTED]
    bench.gate.set()

    async def completed() -> bool:
        return await bench.status("a") is Status.COMPLETED

    await eventually(completed)
    assert bench.began == ["a"]
    await bench.engine.close()


async def test_a_claim_that_takes_a_run_over_while_it_reports_gets_the_outcome_too() -> None:
    bench = Bench()
    bench.gate.set()
    (old,) = await bench.start("a")
    bench.store.failures = 2
    await eventually(lambda: bench.store.failures == 1)
    await bench.store.settle_now([released(old, "taken for dead")])
    (item,) = (await bench.store.claim("WORK", 1, NO_DELAY)).items
    # The report of the old claim is under way when the new one takes the run over.
    bench.store.before_settling = lambda: bench.engine.start(
        [StartRequest(item.claim, DispatchConfig(item_type="WORK"), "{}", NO_DELAY)]
    )
    bench.store.failures = 0

    async def completed() -> bool:
        return await bench.status("a") is Status.COMPLETED

    await eventually(completed)
    assert bench.began == ["a"]
    await bench.engine.close()


async def test_closing_gives_back_what_waits_at_once_and_what_runs_after_a_while() -> None:
    bench = Bench(grace=0.1)
    await bench.start("running")
    await eventually(lambda: bench.began)
    await bench.start("waiting", delay=timedelta(hours=1))
    await bench.engine.close()
    assert await bench.depth() == {Status.READY: 2}
    (outcome,) = await bench.engine.start(
        [StartRequest(Claim("WORK", "late", 1, 0), await bench.configure(), "{}", NO_DELAY)]
    )
    assert outcome.start is Start.EXHAUSTED


async def test_an_item_type_nobody_registered_is_refused() -> None:
    bench = Bench()
    config = (await bench.configure()).changed({})
    (outcome,) = await bench.engine.start([StartRequest(Claim("NOPE", "a", 1, 0), config, "{}", NO_DELAY)])
    assert outcome.start is Start.FAILED
    assert "NOPE" in outcome.detail
    await bench.engine.close()


@pytest.mark.parametrize("error", [ValueError("näh\x00"), TimeoutError(), KeyError("x")])
async def test_any_exception_is_a_failure_with_a_readable_error(error: Exception) -> None:
    bench = Bench()

    async def fail(item_id: str, context: Any) -> None:
        raise error

    config = bench.registry.register("BAD", fail).config
    await bench.store.configure(config)
    await bench.store.enqueue([EnqueueRequest.of("BAD", "a", {})])
    (item,) = (await bench.store.claim("BAD", 1, NO_DELAY)).items
    await bench.engine.start([StartRequest(item.claim, config, "{}", NO_DELAY)])

    async def failed() -> bool:
        row = await bench.store.find("BAD", "a")
        return row is not None and type(error).__name__ in str(row[0].last_error)

    await eventually(failed)
    await bench.engine.close()


async def test_a_failed_attempt_keeps_its_traceback_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    async def settle_the_invoice(item_id: str, context: Any) -> None:
        raise ValueError("no such invoice")

    bench.behave = settle_the_invoice
    await bench.start("a")

    async def failed() -> bool:
        return (await bench.item("a")).retry_count == 1

    await eventually(failed)
    (attempt,) = await bench.store.attempts("WORK", "a")
    assert (attempt.number, attempt.outcome, attempt.error) == (1, "failed", "ValueError: no such invoice")
    assert "in settle_the_invoice" in str(attempt.traceback)
    assert any("in settle_the_invoice" in message for message in caplog.messages)
    await bench.engine.close()


# -- claims that come while the answer to the last run's report is under way ------------------------------------------


async def test_a_failure_that_is_claimed_before_its_answer_arrives_runs_again() -> None:
    bench = Bench()
    bench.errors.append(RuntimeError("first time"))
    bench.gate.set()
    started: list[Start] = []

    async def claimed_again() -> None:
        started.append(await bench.again("a"))

    bench.store.after_settling = claimed_again
    await bench.start("a")
    await eventually(bench.is_completed)
    assert (started, bench.began) == ([Start.STARTED], ["a", "a"])
    await eventually(lambda: bench.room() >= 100)
    await bench.engine.close()


async def test_a_failure_whose_answer_was_lost_counts_once() -> None:
    bench = Bench()
    bench.errors += [RuntimeError("once"), RuntimeError("twice")]
    bench.gate.set()

    async def claimed_again_and_gone() -> None:
        await bench.again("a")
        raise StoreUnavailable("the answer was lost")

    bench.store.after_settling = claimed_again_and_gone
    await bench.start("a", max_dispatch_retries=3)

    async def failed_twice() -> bool:
        return (await bench.item("a")).retry_count == 2

    await eventually(failed_twice)
    assert (await bench.status("a"), bench.began) == (Status.READY, ["a", "a"])
    await bench.again("a")
    await eventually(bench.is_completed)
    assert bench.began == ["a"] * 3
    await bench.engine.close()


async def test_a_release_that_is_claimed_before_its_answer_arrives_runs() -> None:
    bench = Bench()
    bench.gate.set()

    async def switched_on_and_claimed() -> None:
        await bench.switch(True)
        await bench.again("a")

    bench.store.after_settling = switched_on_and_claimed
    await bench.start("a", enabled=False, dispatch_interval_secs=0.01)

    async def run_to_its_end() -> bool:
        if await bench.status("a") is Status.READY:  # it was still remembered as off
            await bench.again("a")
        return await bench.is_completed()

    await eventually(run_to_its_end)
    assert bench.began == ["a"]
    await bench.engine.close()


async def test_the_same_claim_started_twice_runs_once_even_while_its_failure_is_reported() -> None:
    bench = Bench()
    bench.errors.append(RuntimeError("no"))
    bench.gate.set()
    outcomes: list[Start] = []

    async def started_twice() -> None:
        request = StartRequest(Claim("WORK", "a", 1, 0), await bench.configure(), "{}", NO_DELAY)
        outcomes.extend(outcome.start for outcome in await bench.engine.start([request]))

    bench.store.before_settling = started_twice
    (claim,) = await bench.start("a")

    async def over() -> bool:
        return not await bench.goes_on(claim)

    await eventually(over)
    assert (outcomes, bench.began) == ([Start.ALREADY_STARTED], ["a"])
    await bench.engine.close()


async def test_an_older_claim_takes_no_run_over() -> None:
    bench = Bench()
    (old,) = await bench.start("a")
    await eventually(lambda: bench.began)
    await bench.store.settle([released(old, "taken for dead")])
    assert await bench.again("a") is Start.ALREADY_STARTED
    request = StartRequest(old, await bench.configure(), "{}", NO_DELAY)
    assert [outcome.start for outcome in await bench.engine.start([request])] == [Start.ALREADY_STARTED]
    bench.gate.set()
    await eventually(bench.is_completed)
    assert bench.began == ["a"]
    await bench.engine.close()


async def test_a_run_that_was_stopped_takes_its_time_and_a_new_claim_runs_after_it() -> None:
    bench = Bench()
    cleaned = asyncio.Event()
    steps: list[str] = []

    async def untidy(item_id: str, context: Any) -> None:
        steps.append("begin")
        if len(steps) > 1:
            return
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("stopped")
            await cleaned.wait()
            steps.append("clean")

    bench.behave = untidy
    (claim,) = await bench.start("a", stale_claim_threshold_mins=0.005)
    await eventually(lambda: steps == ["begin"])
    await bench.store.settle([released(claim, "recovered elsewhere")])
    await eventually(lambda: steps == ["begin", "stopped"])
    assert await bench.again("a") is Start.STARTED
    await asyncio.sleep(0)
    cleaned.set()
    await eventually(bench.is_completed)
    assert steps == ["begin", "stopped", "clean", "begin"]
    await bench.engine.close()


async def test_work_that_ends_cancelled_by_itself_failed() -> None:
    bench = Bench()

    async def cancels_its_own(item_id: str, context: Any) -> None:
        part = asyncio.create_task(asyncio.Event().wait())
        part.cancel()
        await part

    bench.behave = cancels_its_own
    await bench.start("a")

    async def failed() -> bool:
        return (await bench.item("a")).retry_count == 1

    await eventually(failed)
    item = await bench.item("a")
    assert (item.status, str(item.last_error).partition(":")[0]) == (Status.READY, "CancelledError")
    await bench.engine.close()
