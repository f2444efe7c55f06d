"""Limiters with local leases, in several processes, on one store: no window and no bucket gives more than it has."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from paceline import AsyncLimiter, FixedWindow, LeasePolicy, Plan, TokenBucket
from paceline.limits.model import Charge, Decision
from paceline.limits.ports import AsyncLimitStore
from paceline.limits.stores.memory import MemoryLimitStore
from tests.simulation.loop import Process
from tests.simulation.network import Remote
from tests.simulation.world import Violation, World

KEY, PLAN = "user", "plan"
SECONDS = 10.0
DEADLINE = 0.5


class Admission(NamedTuple):
    """A call that was admitted: by a lease at its end, or by the store some time between its beginning and its end."""

    from_us: int
    at_us: int
    cost: int


class WatchedStore(MemoryLimitStore):
    """Remembers when windows end."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world)
        self._world = world
        self.ends_us: set[int] = set()

    def decide(self, chain: Sequence[Charge], **options: Any) -> Decision:
        decision = super().decide(chain, **options)
        self._world.note(f"decides {chain[0].cost}: {decision.allowed}, {decision.remaining} left")
        if decision.allowed:
            self.ends_us.add(self._world.monotonic_us() + decision.reset_after_us)
        return decision

    def refund(self, chain: Sequence[Charge], **options: Any) -> None:
        super().refund(chain, **options)
        self._world.note(f"takes {chain[0].cost} back")


async def play(world: World) -> None:
    """Callers of two to four processes acquire under one plan, as fast as it gives, and some leave early."""
    random = world.random
    spec: FixedWindow | TokenBucket
    if random.random() < 0.5:
        spec = FixedWindow(random.choice([5, 20, 100]), random.choice(["PT0.5S", "PT2S", "PT5S"]))
    else:
        spec = TokenBucket(random.choice([5, 20, 100]), random.choice([1, 10, 50]))
    policy = LeasePolicy(longest=random.choice([0.2, 1.0, 5.0]), share=random.choice([0.1, 0.3, 1.0]))
    world.note(f"{spec}, {policy}")
    server, store = world.server("limits"), WatchedStore(world)
    admissions: list[Admission] = []

    async def call(limiter: AsyncLimiter) -> None:
        while True:
            cost = 1 if random.random() < 0.8 else random.randint(1, 5)
            from_us = world.monotonic_us()
            try:
                async with asyncio.timeout(0.3 if random.random() < 0.1 else None):
                    decision = await limiter.acquire(KEY, PLAN, cost)
            except TimeoutError:
                continue
            if decision.allowed:
                admissions.append(Admission(from_us, world.monotonic_us(), cost))
            await asyncio.sleep(random.expovariate(1 / 0.05) if decision.allowed else random.random())

    async def main(process: Process) -> None:
        remote = cast(AsyncLimitStore, Remote(AsyncLimitStore, store, world.link(process, server, 2 * DEADLINE)))
        while True:
            limiter = AsyncLimiter(
                remote, plans=[Plan(PLAN, spec, on_error="closed")], lease=policy, deadline=DEADLINE, clock=None
            )
            callers = [asyncio.create_task(call(limiter)) for _ in range(random.randint(1, 4))]
            await asyncio.sleep(random.uniform(1, 2 * SECONDS))
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            await limiter.close()

    processes = [world.process(f"app-{number}", main) for number in range(random.randint(2, 4))]
    await world.endure(SECONDS)
    if isinstance(spec, FixedWindow):
        check_windows(admissions, store.ends_us, spec)
    else:
        check_bucket(admissions, spec, policy, len(processes) + world.deaths)


def check_windows(admissions: Sequence[Admission], ends_us: set[int], spec: FixedWindow) -> None:
    """A call that took no time was decided in its own window; any other in one of the windows that it touches. Filled
    in order, the calls that end first first, the windows hold them all if they can at all."""
    waiting = sorted(admissions, key=lambda call: call.from_us)
    touching: list[tuple[int, int]] = []
    for end_us in sorted(ends_us):
        while waiting and waiting[0].from_us < end_us:
            call = waiting.pop(0)
            heapq.heappush(touching, (call.at_us, call.cost))
        room = spec.limit
        while touching and (room or touching[0][0] < end_us):
            at_us, cost = heapq.heappop(touching)
            if at_us < end_us - spec.window_us or (cost > room and at_us < end_us):
                raise Violation(f"{cost - room} admitted at {at_us}, beyond the {spec.limit} of the window to {end_us}")
            spent = min(cost, room)
            room -= spent
            if spent < cost:
                heapq.heappush(touching, (at_us, cost - spent))
    if touching or waiting:
        raise Violation(f"{[*touching, *waiting]} lie in no window of the store")


def check_bucket(admissions: Sequence[Admission], spec: TokenBucket, policy: LeasePolicy, processes: int) -> None:
    """Since the first use, what the bucket gives; in any span, that of the span and a lease's life, and what was lent
    out when the span began."""
    lent = max(1, int(spec.capacity * policy.share)) * processes
    total = 0
    for _, at_us, cost in admissions:
        total += cost
        most = spec.capacity + spec.per_second * (at_us - admissions[0].from_us) / 1e6
        if total > most + 1:
            raise Violation(f"{total} admitted since the first use, of {most:.1f}")
    # Gone through once: of all spans that end here, the one that is fullest beyond its refill.
    fullest, last_us = 0.0, 0
    late = 2 * DEADLINE
    for _, at_us, cost in admissions:
        fullest = max(0.0, fullest - spec.per_second * (at_us - last_us) / 1e6) + cost
        last_us = at_us
        if fullest > spec.capacity + spec.per_second * (policy.longest + late) + lent + 1:
            raise Violation(f"{fullest:.1f} admitted in a span beyond its refill")
