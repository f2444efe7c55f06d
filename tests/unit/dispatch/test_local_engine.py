"""The in-process engine beyond the contract: bounds, guards, signs of life, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from headgate.adapters.local.engine import LocalEngine
from headgate.adapters.memory.queue import MemoryQueueStore
from headgate.dispatch.config import DispatchConfig
from headgate.dispatch.decisions import released
from headgate.dispatch.model import Change, Claim, EnqueueRequest
from headgate.dispatch.ports import Start, StartRequest
from headgate.dispatch.registry import Registry
from headgate.dispatch.reporting import OutcomeReporter
from headgate.dispatch.status import Status
from headgate.errors import StoreUnavailable
from headgate.testing import eventually

NO_DELAY = timedelta(0)


class FlakyStore(MemoryQueueStore):
    """Fails to settle as often as told, hangs while told to."""

    failures = 0
    before_settling: Callable[[], Awaitable[Any]] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.answering = asyncio.Event()
        self.answering.set()

    async def config(self, item_type: str) -> DispatchConfig | None:
        await self.answering.wait()
        return await super().config(item_type)

    async def settle(self, changes: Sequence[Change], **options: Any) -> list[bool]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("gone")
        if self.before_settling is not None:
            before, self.before_settling = self.before_settling, None
            await before()
        return await super().settle(changes, **options)

    async def settle_now(self, changes: Sequence[Change]) -> list[bool]:
        return await super().settle(changes)


class Turnstile:
    """A guard that admits when told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.gate = asyncio.Semaphore(0)

    async def admit(self, plan: str, key: str) -> None:
        self.asked.append((plan, key))
        await self.gate.acquire()


class Bench:
    def __init__(self, **options: Any) -> None:
        self.store = FlakyStore()
        self.began: list[str] = []
        self.gate = asyncio.Event()
        self.registry = Registry()
        self.registry.register("WORK", self._execute)
        self.engine = LocalEngine(self.registry, OutcomeReporter(self.store), **options)

    async def _execute(self, item_id: str, context: Any) -> None:
        self.began.append(item_id)
        await self.gate.wait()

    async def start(self, *item_ids: str, delay: timedelta = NO_DELAY, **settings: Any) -> list[Claim]:
        config = (await self.configure()).changed(settings)
        await self.store.configure(config)
        await self.store.enqueue([EnqueueRequest.of("WORK", item_id, {}) for item_id in item_ids])
        batch = await self.store.claim("WORK", len(item_ids), NO_DELAY)
        requests = [StartRequest(item.claim, config, "{}", delay) for item in batch.items]
        assert {outcome.start for outcome in await self.engine.start(requests)} == {Start.STARTED}
        return [item.claim for item in batch.items]

    async def configure(self) -> DispatchConfig:
        return await self.store.config("WORK") or DispatchConfig(item_type="WORK", retry_backoff_secs=0)

    async def status(self, item_id: str) -> Status:
        found = await self.store.find("WORK", item_id)
        assert found is not None
        return found[0].status

    async def seen_at(self, item_id: str) -> datetime | None:
        found = await self.store.find("WORK", item_id)
        assert found is not None
        return found[0].seen_at

    async def depth(self) -> dict[Status, int]:
        return dict((await self.store.stats("WORK")).depth)


async def test_no_more_run_at_once_than_allowed_and_the_rest_follows() -> None:
    bench = Bench(concurrency=2, backlog=10)
    await bench.start("a", "b", "c")
    await eventually(lambda: len(bench.began) == 2)
    assert bench.engine.room("WORK") == 7
    assert bench.engine.room("OTHER") == 10
    bench.gate.set()
    await eventually(lambda: len(bench.began) == 3)
    await bench.engine.close()
    assert await bench.depth() == {Status.COMPLETED: 3}
    assert bench.engine.room("WORK") == 0


async def test_an_execution_begins_only_when_its_plan_admits_it() -> None:
    turnstile = Turnstile()
    bench = Bench(guard=turnstile)
    bench.gate.set()
    await bench.start("a", "b", admission_plan="tps50")
    await eventually(lambda: len(turnstile.asked) == 2)
    assert (turnstile.asked, bench.began) == ([("tps50", "WORK")] * 2, [])
    turnstile.gate.release()
    await eventually(lambda: len(bench.began) == 1)
    assert bench.began == ["a"]
    turnstile.gate.release()
    await eventually(lambda: len(bench.began) == 2)
    await bench.engine.close()


async def test_who_waits_for_a_plan_is_given_back_when_the_kill_switch_is_thrown() -> None:
    turnstile = Turnstile()
    bench = Bench(guard=turnstile)
    await bench.start("a", admission_plan="tps50")
    await eventually(lambda: turnstile.asked)
    await bench.store.configure((await bench.configure()).changed({"enabled": False}))

    async def back() -> bool:
        return await bench.status("a") is Status.READY

    await eventually(back)
    assert bench.began == []
    await bench.engine.close()


async def test_who_is_admitted_calls_at_once_whatever_the_store_does() -> None:
    """A look at the store between the admission and the call would let calls bunch beyond the plan."""
    turnstile = Turnstile()
    bench = Bench(guard=turnstile)
    await bench.start("a", admission_plan="tps50")
    await eventually(lambda: turnstile.asked)
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

    bench = Bench(guard=Broken())
    await bench.start("a", admission_plan="tps50", max_dispatch_retries=1)

    async def dead() -> bool:
        return await bench.status("a") is Status.DEAD_LETTER

    await eventually(dead)
    await bench.engine.close()


async def test_an_outcome_is_told_until_the_store_takes_it() -> None:
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


async def test_a_claim_that_takes_a_run_over_while_it_reports_is_told_too() -> None:
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
        found = await bench.store.find("BAD", "a")
        return found is not None and type(error).__name__ in str(found[0].last_error)

    await eventually(failed)
    await bench.engine.close()
