"""The five steps of a cycle, on the memory store, with an engine that does what the test says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_start, newer_context
from paceline.dispatch.model import Action, Claim, ClaimedItem, EnqueueRequest, SilentClaim
from paceline.dispatch.ports import (
    STARTED,
    Execution,
    ExecutionState,
    Start,
    StartOutcome,
    StartRequest,
)
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.errors import NotFound
from tests.models.queue_store import MemoryQueueStore

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CONFIG = DispatchConfig(item_type="PAY", max_dispatch_retries=2, batch_size=10)
LATER = T + timedelta(minutes=10)


class ScriptedEngine:
    """Answers as told; remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[StartRequest] = []
        self.outcomes: dict[str, StartOutcome] = {}
        self.states: dict[str, Execution] = {}
        self.error: Exception | None = None
        self.free: int | None = None

    async def start(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        if self.error:
            raise self.error
        self.requests += requests
        return [self.outcomes.get(request.claim.item_id, STARTED) for request in requests]

    async def describe(self, claims: Sequence[Claim]) -> list[ExecutionState]:
        if self.error:
            raise self.error
        return [ExecutionState(self.states.get(claim.item_id, Execution.NOT_FOUND), "told") for claim in claims]

    async def stop(self, claims: Sequence[Claim], *, running: bool = False) -> None: ...

    def reserved(self, config: DispatchConfig, limit: int) -> AbstractContextManager[int]:
        return nullcontext(0)

    def inquires(self, item_type: str) -> bool:
        return False

    def looks_ahead(self, item_type: str) -> bool:
        return True

    def room(self, config: DispatchConfig) -> int | None:
        return self.free

    async def close(self) -> None: ...


class Recorder:
    """Collects what an observer is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> object:
        return lambda _type, *counts: self.events.append((name, counts[0] if name != "cycled" else 0))


class Bench:
    def __init__(self) -> None:
        self.store = MemoryQueueStore()
        self.engine = ScriptedEngine()
        self.observer = Recorder()
        self.cycle = DispatchCycle(self.store, self.engine, observer=self.observer, uniform=lambda: 0.5)  # type: ignore[arg-type]

    async def status(self, item_id: str) -> Status:
        row = await self.store.find("PAY", item_id)
        assert row is not None
        return row[0].status

    async def retries(self, item_id: str) -> int:
        row = await self.store.find("PAY", item_id)
        assert row is not None
        return row[0].retry_count


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    await bench.store.configure(CONFIG, now=T)
    return bench


async def put(bench: Bench, *item_ids: str, at: datetime = T, slotted: bool = False) -> None:
    await bench.store.enqueue([EnqueueRequest.of("PAY", i, {"id": i}, at, slotted=slotted) for i in item_ids], now=T)


async def test_a_batch_is_started_with_contexts_and_recorded(bench: Bench) -> None:
    await put(bench, "a", "b")
    report = await bench.cycle.run("PAY", now=T)
    assert (report.claimed, report.started, report.more) == (2, 2, False)
    assert [(r.execution_id, r.context_json) for r in bench.engine.requests] == [
        ("exec-PAY-a", '{"id":"a"}'),
        ("exec-PAY-b", '{"id":"b"}'),
    ]
    assert await bench.status("a") is Status.DISPATCHED
    (summary, *_) = await bench.store.audit("PAY", None, 1, None)
    assert (summary.action, summary.detail) == (Action.BATCH_COMPLETE, "2 DISPATCHED")
    assert bench.observer.events == [("claimed", 2), ("started", 2), ("cycled", 0)]


async def test_start_delay_is_the_time_left_plus_jitter_and_slots_get_no_jitter(bench: Bench) -> None:
    await put(bench, "plain", at=T + 3 * SECOND)
    await put(bench, "slot", at=T + 3 * SECOND, slotted=True)
    await put(bench, "late", at=T - SECOND)
    await bench.cycle.run("PAY", now=T)
    delays = {request.claim.item_id: request.start_delay for request in bench.engine.requests}
    assert delays == {"plain": 5 * SECOND, "slot": 3 * SECOND, "late": 2 * SECOND}


async def test_what_falls_due_before_the_next_cycle_is_claimed_now_and_nothing_later(bench: Bench) -> None:
    await put(bench, "in", at=T + 5 * SECOND)
    await put(bench, "out", at=T + 5 * SECOND + timedelta(milliseconds=1))
    await bench.cycle.run("PAY", now=T)
    assert [request.claim.item_id for request in bench.engine.requests] == ["in"]
    await bench.store.configure(CONFIG.changed({"preStartBufferMins": 1}))
    await bench.cycle.run("PAY", now=T)
    assert [request.claim.item_id for request in bench.engine.requests] == ["in", "out"]


async def test_the_kill_switch_stops_everything_and_loses_nothing(bench: Bench) -> None:
    await put(bench, "a")
    await bench.store.configure(CONFIG.changed({"enabled": False}))
    report = await bench.cycle.run("PAY", now=T)
    assert (report.enabled, report.claimed, bench.engine.requests) == (False, 0, [])
    assert await bench.status("a") is Status.READY
    await bench.store.configure(CONFIG)
    assert (await bench.cycle.run("PAY", now=T)).started == 1


async def test_an_unknown_item_type_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound, match="NOPE"):
        await bench.cycle.run("NOPE")


async def test_every_answer_of_the_engine_has_its_consequence(bench: Bench) -> None:
    await put(bench, "already", "exhausted", "failed", "ok", "poisoned")
    bench.engine.outcomes = {
        "already": StartOutcome(Start.ALREADY_STARTED),
        "exhausted": StartOutcome(Start.EXHAUSTED, "slow down"),
        "failed": StartOutcome(Start.FAILED, "no route"),
        "poisoned": StartOutcome(Start.POISONED, "too large"),
    }
    report = await bench.cycle.run("PAY", now=T)
    assert (report.started, report.released, report.failed, report.dead_lettered) == (2, 1, 1, 1)
    assert report.slow_down
    expected = {
        "already": (Status.DISPATCHED, 0),
        "exhausted": (Status.READY, 0),
        "failed": (Status.READY, 1),
        "ok": (Status.DISPATCHED, 0),
        "poisoned": (Status.DEAD_LETTER, 0),
    }
    assert {i: (await bench.status(i), await bench.retries(i)) for i in expected} == expected


async def test_start_failures_end_as_dead_letters(bench: Bench) -> None:
    await put(bench, "a")
    bench.engine.outcomes["a"] = StartOutcome(Start.FAILED, "no route")
    await bench.cycle.run("PAY", now=T)
    await bench.cycle.run("PAY", now=LATER)
    assert await bench.status("a") is Status.DEAD_LETTER
    assert ("dead_lettered", 1) in bench.observer.events


@pytest.mark.parametrize("buffer", [0, 10])
async def test_the_pause_before_a_retry_is_kept_however_far_claims_look_ahead(bench: Bench, buffer: int) -> None:
    await bench.store.configure(CONFIG.changed({"preStartBufferMins": buffer, "maxDispatchRetries": 9}))
    await put(bench, "a")
    bench.engine.outcomes["a"] = StartOutcome(Start.FAILED, "no")
    now = T
    for pause in (5, 10, 20):
        assert (await bench.cycle.run("PAY", now=now)).failed == 1
        again = now + pause * SECOND
        assert (await bench.cycle.run("PAY", now=again - timedelta(milliseconds=1))).claimed == 0
        now = again
    bench.engine.outcomes.clear()
    assert (await bench.cycle.run("PAY", now=now)).started == 1


async def test_a_poisoned_context_is_sorted_out_alone(bench: Bench) -> None:
    """Peer bug 20: one bad row must not block its batch."""
    await put(bench, "bad", "good", "missing")
    bench.store._contexts["PAY", "bad"] = '{"cut off'
    del bench.store._contexts["PAY", "missing"]
    report = await bench.cycle.run("PAY", now=T)
    assert (report.started, report.dead_lettered, report.slow_down) == (1, 2, False)
    assert await bench.status("bad") is Status.DEAD_LETTER
    assert await bench.status("missing") is Status.DEAD_LETTER
    assert await bench.status("good") is Status.DISPATCHED
    row = await bench.store.find("PAY", "bad")
    assert row is not None
    assert "not JSON" in str(row[0].last_error)


async def test_an_engine_that_fails_as_a_whole_burns_nobodys_retries(bench: Bench) -> None:
    await put(bench, "a", "b")
    bench.engine.error = ConnectionError("gone")
    report = await bench.cycle.run("PAY", now=T)
    assert (report.released, report.slow_down) == (2, True)
    assert (await bench.status("a"), await bench.retries("a")) == (Status.READY, 0)


async def test_no_more_is_claimed_than_the_engine_has_room_for(bench: Bench) -> None:
    await put(bench, "a", "b", "c")
    bench.engine.free = 2
    report = await bench.cycle.run("PAY", now=T)
    assert (report.claimed, report.more, report.crowded) == (2, True, False)
    bench.engine.free = 0
    report = await bench.cycle.run("PAY", now=T)
    assert (report.claimed, report.crowded) == (0, True)
    assert await bench.status("c") is Status.READY


async def test_a_full_batch_says_there_is_more(bench: Bench) -> None:
    await put(bench, *(f"i{n:02}" for n in range(11)))
    assert [(await bench.cycle.run("PAY", now=T)).more for _ in range(2)] == [True, False]


# -- stale claims ------------------------------------------------------------------------------------------------


async def claimed(bench: Bench, *item_ids: str, dispatched: bool = False) -> list[Claim]:
    await put(bench, *item_ids)
    batch = await bench.store.claim("PAY", 10, timedelta(0), begins=True, now=T)
    claims = [item.claim for item in batch.items]
    if dispatched:
        await bench.store.settle([after_start(c, STARTED, CONFIG, batch.batch_id) for c in claims], now=T)
    return claims


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize(
    ("state", "status", "retries"),
    [
        (Execution.NOT_FOUND, Status.READY, 1),
        (Execution.COMPLETED, Status.COMPLETED, 0),
        (Execution.FAILED, Status.READY, 1),
        (Execution.RUNNING, Status.DISPATCHED, 0),
        (Execution.UNKNOWN, None, 0),
    ],
)
async def test_a_silent_claim_is_looked_into(
    bench: Bench, dispatched: bool, state: Execution, status: Status | None, retries: int
) -> None:
    (claim,) = await claimed(bench, "a", dispatched=dispatched)
    bench.engine.states["a"] = state
    await bench.cycle.recover(CONFIG, now=T + timedelta(seconds=119))
    assert await bench.status("a") is (Status.DISPATCHED if dispatched else Status.CLAIMED), "too early"
    await bench.cycle.recover(CONFIG, now=T + timedelta(seconds=120))
    expected = status or (Status.DISPATCHED if dispatched else Status.CLAIMED)
    assert (await bench.status("a"), await bench.retries("a")) == (expected, retries)
    if state in (Execution.RUNNING, Execution.UNKNOWN):
        assert await bench.store.touch([claim], now=T) == [True]


async def test_recovery_counts_retries_and_ends_as_dead_letter(bench: Bench) -> None:
    await claimed(bench, "a")
    assert await bench.cycle.recover(CONFIG, now=LATER) == 1
    assert len((await bench.store.claim("PAY", 1, timedelta(0), begins=True, now=LATER + 60 * SECOND)).items) == 1
    assert await bench.cycle.recover(CONFIG, now=LATER + 600 * SECOND) == 1
    assert await bench.status("a") is Status.DEAD_LETTER
    assert [events for events in bench.observer.events if events[0] != "cycled"] == [
        ("recovered", 1),
        ("recovered", 1),
        ("dead_lettered", 1),
    ]


async def test_what_never_began_is_given_back_uncounted(bench: Bench) -> None:
    await put(bench, "a")
    for round in range(3):
        assert len((await bench.store.claim("PAY", 1, timedelta(0), now=T + round * 600 * SECOND)).items) == 1
        assert await bench.cycle.recover(CONFIG, now=T + (round * 600 + 300) * SECOND) == 1
    assert (await bench.status("a"), await bench.retries("a")) == (Status.READY, 0)


async def test_long_running_items_do_not_starve_recovery_of_others(bench: Bench) -> None:
    """Peer bug 18: with a cap of 2, two that live must not hide the third, which is lost."""
    await claimed(bench, "live1", "live2", "zlost", dispatched=True)
    bench.engine.states = {"live1": Execution.RUNNING, "live2": Execution.RUNNING}
    capped = CONFIG.changed({"maxStaleRecoveryPerCycle": 2})
    assert await bench.cycle.recover(capped, now=LATER) == 0
    assert await bench.cycle.recover(capped, now=LATER) == 1
    assert await bench.status("zlost") is Status.READY


async def test_an_engine_that_cannot_answer_does_not_stop_the_cycle(bench: Bench) -> None:
    """Peer bug 18: recovery must not depend on the thing that stalled."""
    await claimed(bench, "silent")
    bench.engine.error = ConnectionError("gone")
    assert await bench.cycle.recover(CONFIG, now=LATER) == 0
    assert await bench.status("silent") is Status.CLAIMED


async def test_another_types_stale_claims_are_left_alone(bench: Bench) -> None:
    await claimed(bench, "a")
    assert await bench.cycle.recover(DispatchConfig(item_type="OTHER"), now=LATER) == 0
    assert await bench.status("a") is Status.CLAIMED


async def test_stale_claims_are_looked_for_every_cycle_only_while_there_are_some(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    uptime, looks = 1000.0, []
    found: list[SilentClaim] = []

    async def stale(*_: object, now: object) -> list[SilentClaim]:
        looks.append(uptime)
        return found

    monkeypatch.setattr(time, "monotonic", lambda: uptime)
    monkeypatch.setattr(bench.store, "stale", stale)
    config = DispatchConfig(item_type="PAY", dispatch_interval_secs=2, stale_claim_threshold_mins=2)
    for _ in range(7):
        await bench.cycle.recover(config)
        uptime += 1.0
    assert looks == [1000.0, 1006.0]
    found.append(SilentClaim(Claim("PAY", "a", 1, 0), Status.CLAIMED, True))
    looks.clear()
    for _ in range(9):
        await bench.cycle.recover(config)
        uptime += 1.0
    assert looks == [1012.0, 1014.0]


def test_an_item_of_a_newer_version_is_given_back_with_a_clear_word_and_no_retry() -> None:
    config = DispatchConfig(item_type="WORK")
    item = ClaimedItem(Claim("WORK", "a", 1, 2), T, True, "{}", None, 7)
    change = newer_context(item, config, "B")
    assert (change.status, change.retries) == (Status.READY, 2)
    assert change.pause is not None
    assert change.pause > config.look_ahead
    assert "version 7" in str(change.detail)
    assert "upgrade" in str(change.detail)
