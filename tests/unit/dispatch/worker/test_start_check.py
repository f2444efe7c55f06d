"""What stands between a claim and an effect: the claim itself, the kill switch, the plan; and the store when away."""

from __future__ import annotations

import asyncio
import logging

import pytest

from paceline.clock import uptime
from paceline.dispatch.decisions import released
from paceline.dispatch.model import Action, Claim, EnqueueRequest
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.status import Status
from paceline.dispatch.worker import run, start_check
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.outcome_reporter import TRUSTED_SECONDS
from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from tests.models.held_starts import HeldStarts
from tests.unit.dispatch.local_bench import Bench, Turnstile

HOUR = 3600.0


class Later:
    """This process's own clock, moved on as told: as if it had been stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by = 0.0
        for module in (start_check, run):
            monkeypatch.setattr(module, "uptime", self.now)

    def now(self) -> float:
        return uptime() + self.by


async def over(bench: Bench, claim: Claim) -> bool:
    return not await bench.goes_on(claim)


async def test_a_dispatcher_that_slept_between_claim_and_start_runs_nothing_that_was_discarded() -> None:
    bench = Bench()
    bench.gate.set()
    config = await bench.configure()
    await bench.store.configure(config)
    await bench.store.enqueue([EnqueueRequest.of("WORK", "a", {})])
    cycle = DispatchCycle(bench.store, bench.engine)
    batch = await cycle.claim(config, 1)
    assert batch.claim_requested_at is not None
    (item,) = batch.items
    await bench.store.settle([released(item.claim, "recovered")])
    await bench.store.redirect("WORK", ["a"], Status.CANCELLED)
    awake = batch._replace(claim_requested_at=batch.claim_requested_at - HOUR)
    await cycle.record(config, awake, await cycle.start(config, awake))
    await eventually(lambda: over(bench, item.claim))
    assert (await bench.status("a"), bench.began) == (Status.CANCELLED, [])
    await bench.engine.close()


async def test_one_that_slept_and_still_holds_its_claim_runs_it_once_with_a_sign_of_life() -> None:
    bench = Bench()
    bench.gate.set()
    await bench.start("a", claim_requested_at=uptime() - HOUR)
    await eventually(bench.is_completed)
    assert (bench.began, bench.store.touched) == (["a"], 1)
    await bench.engine.close()


async def test_a_claim_that_is_young_costs_no_question() -> None:
    bench = Bench()
    bench.gate.set()
    await bench.start("a", "b", claim_requested_at=uptime())
    await eventually(bench.is_completed)
    assert (sorted(bench.began), bench.store.touched) == (["a", "b"], 0)
    await bench.engine.close()


async def test_who_slept_at_the_plan_and_lost_the_claim_is_admitted_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later, turnstile = Later(monkeypatch), Turnstile()
    bench = Bench(limits=HeldStarts(turnstile))
    bench.gate.set()
    (claim,) = await bench.start("a", admission_plan="tps50")
    await eventually(lambda: turnstile.waiting)
    later.by = HOUR
    await bench.store.settle([released(claim, "recovered")])
    await bench.store.redirect("WORK", ["a"], Status.CANCELLED)
    turnstile.gate.release()
    await eventually(lambda: over(bench, claim))
    assert (await bench.status("a"), bench.began) == (Status.CANCELLED, [])
    await bench.engine.close()


async def test_while_the_store_is_away_nothing_begins_and_nothing_fails() -> None:
    bench = Bench()
    bench.gate.set()
    bench.store.away = True
    (claim,) = await bench.start("a", max_dispatch_retries=1)
    before = bench.store.reads
    await eventually(lambda: bench.store.reads >= before + 3)
    assert (bench.began, await bench.goes_on(claim)) == ([], True)
    bench.store.away = False
    await eventually(bench.is_completed)
    item = await bench.item("a")
    assert (bench.began, item.retry_count, item.claim_epoch) == (["a"], 0, 1)
    await bench.engine.close()


async def test_a_switch_thrown_while_the_store_is_away_holds_back_who_waits_at_the_plan() -> None:
    """The engine can't see the switch, so it must not trust for long that it is on."""
    turnstile, ahead = Turnstile(), [0.0]
    bench = Bench(limits=HeldStarts(turnstile), clock=lambda: uptime() + ahead[0])
    bench.gate.set()
    await bench.start("a", "b", admission_plan="tps50", dispatch_interval_secs=0.05)
    await eventually(lambda: turnstile.waiting == 1)
    bench.store.away, ahead[0] = True, HOUR
    await bench.switch(False)
    await eventually(lambda: turnstile.waiting == 0)
    for _ in range(2):
        turnstile.gate.release()
    before = bench.store.reads
    await eventually(lambda: bench.store.reads >= before + 3)
    assert bench.began == []
    bench.store.away = False

    async def back() -> bool:
        return await bench.depth() == {Status.READY: 2}

    await eventually(back)
    await bench.switch(True)
    ahead[0] += HOUR
    await bench.again("a")
    await bench.again("b")
    await eventually(bench.is_completed)
    assert sorted(bench.began) == ["a", "b"]
    await bench.engine.close()


async def test_a_store_that_is_away_for_a_moment_disturbs_nobody_at_the_plan() -> None:
    turnstile, now = Turnstile(), [1000.0]
    bench = Bench(limits=HeldStarts(turnstile), clock=lambda: now[0])
    bench.gate.set()
    await bench.start("a", admission_plan="tps50", dispatch_interval_secs=0.05)
    await eventually(lambda: turnstile.waiting)
    bench.store.away = True
    now[0] += TRUSTED_SECONDS / 2
    before = bench.store.reads
    await eventually(lambda: bench.store.reads >= before + 2)
    bench.store.away = False
    turnstile.gate.release()
    await eventually(bench.is_completed)
    assert (len(turnstile.calls), bench.began) == (1, ["a"])
    await bench.engine.close()


async def test_a_limiter_that_is_away_costs_no_retry() -> None:
    class Shaky:
        away = 2

        async def admit(self, plan: str, key: str) -> None:
            if self.away:
                self.away -= 1
                raise StoreUnavailable("away")

    bench = Bench(limits=HeldStarts(Shaky()))
    bench.gate.set()
    await bench.start("a", admission_plan="tps50", max_dispatch_retries=1)
    await eventually(bench.is_completed)
    assert bench.began == ["a"]
    await bench.engine.close()


async def test_a_plan_that_does_not_exist_is_no_items_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    later = Later(monkeypatch)
    async with StartLimits.open("sqlite://") as limits:
        bench = Bench(limits=limits)
        bench.gate.set()
        with caplog.at_level(logging.ERROR, "paceline.dispatch"):
            await bench.start("a", "b", "c", admission_plan="tsp50", max_dispatch_retries=1)

            async def back() -> bool:
                return await bench.depth() == {Status.READY: 3}

            await eventually(back)
        logged = [record.message for record in caplog.records if record.name == "paceline.dispatch"]
        assert [("tsp50" in message, "admissionPlan" in message) for message in logged] == [(True, True)]
        item = await bench.item("a")
        assert (bench.began, item.retry_count, item.last_error) == ([], 0, None)
        (entry,) = await bench.store.audit("WORK", "a", 1, None)
        assert (entry.action, entry.detail) == (Action.RELEASED, "no admission plan named 'tsp50'")
        assert bench.room() == 0
        later.by = start_check.NO_PLAN_SECONDS
        assert bench.room() == 1
        await bench.store.change("WORK", {"admissionPlan": None})
        await bench.again("a")
        await eventually(lambda: bench.began == ["a"])
        await eventually(lambda: bench.room() >= 100)
        await bench.engine.close()


@pytest.mark.parametrize("closing", [True, False])
async def test_closing_gives_back_who_waits_for_a_store_that_is_away(closing: bool) -> None:
    bench = Bench(grace=1)
    bench.store.away = True
    await bench.start("a")
    before = bench.store.reads
    await eventually(lambda: bench.store.reads >= before + 2)
    bench.store.away = closing
    await asyncio.wait_for(bench.engine.close(), 10)
    assert bench.began == []
    assert await bench.status("a") is (Status.CLAIMED if closing else Status.READY)


async def test_an_admission_does_not_count_if_the_kill_switch_was_last_read_long_ago() -> None:
    """The plan made it wait, the store stood still meanwhile, and the switch was thrown."""
    now, guard = [1000.0], Turnstile()
    bench = Bench(clock=lambda: now[0], limits=HeldStarts(guard))
    await bench.start("a", admission_plan="p")
    await eventually(lambda: guard.waiting == 1)
    bench.store.answering.clear()
    await bench.switch(False)
    now[0] += 1
    guard.gate.release()
    await eventually(lambda: guard.waiting == 0)
    await asyncio.sleep(0)
    assert bench.began == []
    bench.store.answering.set()

    async def is_back() -> bool:
        return await bench.status("a") is Status.READY

    await eventually(is_back)
    assert bench.began == []
    await bench.engine.close()
