"""Dispatchers and in-process engines on one queue: no item is lost, none is begun without its claim, and the kill
switch holds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.current_task import current_task
from paceline.dispatch.model import Change, GiveUp, Postponed
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Registry
from paceline.dispatch.start_limits import CALL_TIMEOUT, StartLimits
from paceline.dispatch.status import FINISHED, IN_FLIGHT, Status
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.downstream.downstream import Downstream
from paceline.downstream.ports import PermitStore
from paceline.downstream.rate_gate import PermitRateGate, permit_policy
from paceline.downstream.stores.memory import MemoryPermitStore
from paceline.durations import EPOCH
from paceline.errors import StoreUnavailable
from tests.models.queue_store import MemoryQueueStore
from tests.simulation.loop import Process
from tests.simulation.network import LONGEST_TRIP, Faults, Link, Remote
from tests.simulation.world import Violation, World

WORK, RATE = "WORK", "rate"
STARTS = 2
"""Executions that may begin in a second, under the plan."""
ITEMS = 12
SECONDS = 25.0
SWITCH_SECONDS = 1.0
"""So long after the kill switch was thrown nothing begins."""


class RemoteQueue(Remote):
    """A queue over a link. Its hints are never more than a pause."""

    def __init__(self, store: Any, link: Link, world: World) -> None:
        super().__init__(QueueStore, store, link)
        self._world = world

    async def wait(self, item_types: Collection[str], timeout: float) -> list[str]:
        await asyncio.sleep(timeout * self._world.random.random())
        return [*item_types]


class SwitchedQueue(MemoryQueueStore):
    """Remembers when its kill switch was on last."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world)
        self._world = world
        self._off_at: float | None = None

    async def change(self, item_type: str, changes: Mapping[str, Any], **options: Any) -> DispatchConfig | None:
        config = await super().change(item_type, changes, **options)
        if config is not None:
            if config.enabled:
                self._off_at = None
            elif self._off_at is None:
                self._off_at = self._world.loop.time()
        return config

    def _settle(self, change: Change, origins: tuple[Status, ...], now: datetime) -> bool:
        epoch = self._items[change.claim.item_type, change.claim.item_id].claim_epoch
        written = super()._settle(change, origins, now)
        if written and change.claim.epoch != epoch:
            raise Violation(f"{change} was written, and {epoch} is the claim that counts")
        return written

    @property
    def off_for(self) -> float:
        """Seconds since the switch was thrown; 0 if it is on."""
        return 0.0 if self._off_at is None else self._world.loop.time() - self._off_at


class GatedDownstream(Downstream):
    """A downstream whose permits are in a store over a link."""

    def __init__(self, gate: PermitRateGate) -> None:
        super().__init__(RATE, rate=f"{STARTS}/second", counted="departure", burst=STARTS, call_timeout=CALL_TIMEOUT)
        self._far = gate

    async def _gate(self, key: str) -> PermitRateGate:
        return self._far


class RemoteLimits(StartLimits):
    """The limits of items with an admission plan."""

    def __init__(self, gate: PermitRateGate) -> None:
        super().__init__("memory://")
        self._starts = GatedDownstream(gate)

    async def of(self, config: DispatchConfig) -> tuple[Downstream, ...]:
        return () if config.admission_plan is None else (self._starts,)


class Executions:
    """What executions do, and what they find when they begin."""

    def __init__(self, world: World, store: SwitchedQueue) -> None:
        self._world = world
        self._store = store
        self.begun: Counter[str] = Counter()
        self.ended_well: set[str] = set()
        self.raised: Counter[str] = Counter()
        self.given_up: set[str] = set()

    async def execute(self, item_id: str, _context: Any) -> None:
        world, random = self._world, self._world.random
        item, claim = self._store._items[WORK, item_id], current_task()._claim()
        world.note(f"begins {item_id} in its claim {claim.epoch}")
        self.begun[item_id] += 1
        if item.status not in IN_FLIGHT or item.claim_epoch != claim.epoch:
            world.violated(f"{item_id} is begun under {claim.epoch}, and is {item.status} under {item.claim_epoch}")
        if self._store.off_for > SWITCH_SECONDS:
            world.violated(f"{item_id} is begun {self._store.off_for:.2f} s after the kill switch was thrown")
        await asyncio.sleep(random.expovariate(1 / 0.5) if random.random() < 0.9 else random.uniform(5, 40))
        draw = random.random()
        if draw < 0.1:
            self.raised[item_id] += 1
        if draw < 0.05:
            raise ValueError("no")
        if draw < 0.08:
            raise Postponed("not now", timedelta(seconds=1))
        if draw < 0.1:
            self.given_up.add(item_id)
            raise GiveUp("never")
        self.ended_well.add(item_id)
        world.note(f"ends {item_id}")


async def play(world: World) -> None:
    """Two clients queue items, two or three workers run them, and an operator throws the kill switch now and then."""
    random = world.random
    server, cache, store = world.server("database"), world.server("limits"), SwitchedQueue(world)
    config = DispatchConfig(
        item_type=WORK,
        batch_size=random.choice([1, 5, 20]),
        dispatch_interval_secs=random.choice([0.5, 1, 2]),
        jitter_window_ms=random.choice([0, 500]),
        stale_claim_threshold_mins=random.choice([0.05, 0.1, 0.3]),
        pre_start_buffer_mins=random.choice([0, 0, 0.1]),
        max_dispatch_retries=50,
        retry_backoff_secs=random.choice([0, 1]),
        concurrency=random.choice([None, None, 4]),
        admission_plan=random.choice([None, RATE]),
    )
    await store.configure(config)
    executions, left = Executions(world, store), [f"i{number}" for number in range(ITEMS)]
    acknowledged: list[str] = []
    faultless = world.faults == Faults()
    concurrency, prefetch = random.choice([2, 10]), random.choice([None, 0, 5])

    permits = MemoryPermitStore(permit_policy(STARTS, STARTS), world.now_us)

    def limits(process: Process) -> StartLimits:
        store = cast(PermitStore, Remote(PermitStore, permits, world.link(process, cache, 1.0)))
        return RemoteLimits(
            PermitRateGate(store, call_timeout=CALL_TIMEOUT, limit_at="departure", monotonic=time.monotonic)
        )

    def remote(process: Process) -> QueueStore:
        return cast(QueueStore, RemoteQueue(store, world.link(process, server), world))

    async def client(process: Process) -> None:
        queue = DispatchQueue(remote(process))
        while left:
            item_id, delay = left[int(random.random() * len(left))], timedelta(seconds=random.uniform(-1, 10))
            execute_at = EPOCH + timedelta(microseconds=world.now_us()) + delay
            try:
                await queue.enqueue(WORK, item_id, context={}, execute_at=execute_at)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            if item_id in left:
                left.remove(item_id)
                acknowledged.append(item_id)
            await asyncio.sleep(random.expovariate(1.0))

    async def operator(process: Process) -> None:
        queue = remote(process)
        while True:
            await asyncio.sleep(random.expovariate(1 / 4))
            try:
                await queue.change(WORK, {"enabled": random.random() < 0.5})
            except StoreUnavailable:
                continue

    async def worker(process: Process) -> None:
        queue = remote(process)
        registry = Registry()
        registry.register(WORK, executions.execute)
        outcomes = OutcomeReporter(queue)
        engine = LocalEngine(registry, outcomes, limits=limits(process), concurrency=concurrency, prefetch=prefetch)
        running = DispatchWorker(queue, engine, [WORK])
        if random.random() < 0.3 and not faultless:
            # It ends in good order, and another takes its place.
            asyncio.get_running_loop().call_later(random.uniform(1, SECONDS), running.stop)
        await running.run()
        await outcomes.close()
        await worker(process)

    for number in range(2):
        world.process(f"client-{number}", client)
    for number in range(random.randint(2, 3)):
        world.process(f"worker-{number}", worker)
    if random.random() < 0.5:
        world.process("operator", operator)
    await world.endure(SECONDS)
    world.heal()
    await world.until(lambda: not left, 60, "items are not queued")
    for process in world.loop.processes:
        if process.name == "operator":
            world.loop.kill(process)
    await asyncio.sleep(LONGEST_TRIP)  # the operator's last change may be in flight
    await store.change(WORK, {"enabled": True})
    over = (*FINISHED, Status.DEAD_LETTER)
    await world.until(
        lambda: all(store._items[WORK, item_id].status in over for item_id in acknowledged), 900, "items are not over"
    )
    for item_id in acknowledged:
        check(world, store, executions, item_id, config, faultless)


def check(
    world: World, store: SwitchedQueue, executions: Executions, item_id: str, config: DispatchConfig, faultless: bool
) -> None:
    item = store._items[WORK, item_id]
    if item.status is Status.COMPLETED and item_id not in executions.ended_well:
        raise Violation(f"{item_id} is COMPLETED, and no execution ended well")
    lost = item.retry_count < config.max_dispatch_retries and item_id not in executions.given_up
    if item.status is Status.DEAD_LETTER and lost:
        raise Violation(f"{item_id} is a dead letter after {item.retry_count} retries: {item.last_error}")
    if faultless and executions.begun[item_id] > 1 + executions.raised[item_id]:
        raise Violation(f"{item_id} was begun {executions.begun[item_id]} times, and nothing went wrong")
