"""Queues without workers; workers that hang, block, or have the wrong key; a bank that throttles; no service."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from paceline import DispatchQueue
from paceline.dispatch.config import DispatchConfig, DispatchSettings
from paceline.dispatch.status import Status
from paceline.testing import eventually
from tests.gameday.drill import Drill, GameDay
from tests.gameday.processes import frozen, ports, serving, working
from tests.gameday.prometheus import Prometheus, faster, shipped_rules

KEY, OTHER_KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
HELD_TASKS = """
import asyncio
import os

from paceline import Tasks

tasks = Tasks("sqlite:///paceline.db")


@tasks.task
async def held():
    if "HOLDS" in os.environ:
        await asyncio.Event().wait()


@tasks.task
async def secret(): ...
"""
TASKS = """
import time
from pathlib import Path

from paceline import Downstream, Tasks
from paceline.dispatch.outcomes import OutcomeUnknown

URL = "sqlite:///paceline.db"
tasks = Tasks(URL, threads=4)
bank = Downstream("bank", URL, rate="20/second")


@tasks.task(name="never_ends", timeout=0.2, retries=0)
def never_ends():
    while Path("hangs").exists():
        time.sleep(0.1)


@tasks.task(name="blocks", timeout=60, retries=100, backoff=[1.0])
async def blocks():
    if Path("blocks").exists():
        time.sleep(4)
        raise ValueError("again")


@tasks.task(name="unknown", on_unknown="hold", hold_for="PT1H")
async def unknown():
    raise OutcomeUnknown("no answer")


@tasks.task(name="throttled")
async def throttled():
    while Path("throttles").exists():
        async with bank.call() as call:
            call.refused()
"""
QUICK: DispatchSettings = {"dispatch_interval_secs": 0.2, "jitter_window_ms": 0, "stale_claim_threshold_mins": 0.05}
HELD = 300
"""Items that the hung worker has: the other one recovers five of them per cycle."""
LONELY = 10_001
SECRET = 400


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[GameDay]:
    """A service, and workers beside it, on SQLite."""
    (folder / "held.py").write_text(HELD_TASKS)
    url = f"sqlite:///{folder / 'paceline.db'}"
    variables = {"PACELINE_DISPATCH_WORKER": "worker", "PACELINE_PAYMENTS_WORKER": "worker"}
    keys = {"PACELINE_DISPATCH_ENCRYPTION_KEYS": KEY}
    own = keys | {"PACELINE_DISPATCH_DOMAINS": "held:tasks"}
    async with AsyncExitStack() as stack:
        port, first, second, third = await stack.enter_async_context(ports(4))
        service, _ = await stack.enter_async_context(serving(folder, port, **variables))
        queue = await stack.enter_async_context(DispatchQueue.open(url, encryption_keys=[KEY]))
        plain = await stack.enter_async_context(DispatchQueue.open(url))
        strange = await stack.enter_async_context(DispatchQueue.open(url, encryption_keys=[OTHER_KEY]))
        room = {"PACELINE_DISPATCH_CONCURRENCY": str(HELD)}
        hung = await stack.enter_async_context(working(folder, "first", first, "dispatch", HOLDS="all", **own | room))
        await eventually(lambda: _knows(queue, "HELD"), within=60, every=0.2)
        await queue.configure("HELD", **QUICK | {"batch_size": 400, "max_stale_recovery_per_cycle": 5})
        await queue.configure("SECRET", **QUICK | {"batch_size": 40, "max_dispatch_retries": 0})
        await queue.enqueue_many("HELD", [(f"held-{number}", {}, None) for number in range(HELD)])

        async def all_claimed() -> bool:
            return (await queue.stats("HELD")).depth.get(Status.READY, 0) == 0

        await eventually(all_claimed, within=60, every=0.2)
        await stack.enter_async_context(working(folder, "second", second, "dispatch", **own))
        (folder / "paced.py").write_text(TASKS)
        await stack.enter_async_context(working(folder, "third", third, "paced:tasks"))
        await eventually(lambda: _knows(queue, "THROTTLED"), within=60, every=0.2)

        @asynccontextmanager
        async def nobody() -> AsyncIterator[None]:
            await queue.define(DispatchConfig(item_type="LONELY"))
            await queue.enqueue_many("LONELY", [(f"lonely-{number}", {}, None) for number in range(LONELY)])
            try:
                yield
            finally:
                await queue.cancel("LONELY", status="READY")

        @asynccontextmanager
        async def wrong_key() -> AsyncIterator[None]:
            await strange.enqueue_many("SECRET", [(f"secret-{number}", {}, None) for number in range(SECRET)])
            try:
                yield
            finally:
                await queue.cancel("SECRET", status="READY")

        def while_there(name: str, item_type: str) -> Callable[[], AbstractAsyncContextManager[None]]:
            """A task of the type goes wrong while the file of that name is there."""

            @asynccontextmanager
            async def fault() -> AsyncIterator[None]:
                (folder / name).touch()
                await plain.enqueue(item_type, name, context={})
                try:
                    yield
                finally:
                    (folder / name).unlink()

            return fault

        @asynccontextmanager
        async def nobody_knows() -> AsyncIterator[None]:
            await plain.enqueue("UNKNOWN", "letter", context={})
            try:
                yield
            finally:
                await plain.resolve("UNKNOWN", ["letter"], "done")

        @asynccontextmanager
        async def killed_service() -> AsyncIterator[None]:
            service.signal(signal.SIGKILL)
            await asyncio.to_thread(service.wait)
            try:
                yield
            finally:
                await asyncio.to_thread(service.start)

        targets = {
            "paceline": [f"127.0.0.1:{port}"],
            "paceline-worker": [f"127.0.0.1:{port}" for port in (first, second, third)],
        }
        prometheus = Prometheus(faster(shipped_rules()), targets)
        blind = Prometheus(faster(shipped_rules()), targets)
        for server in (prometheus, blind):
            await asyncio.to_thread(server.start)
            stack.callback(server.close)

        @asynccontextmanager
        async def nothing_scraped() -> AsyncIterator[None]:
            blind.watch({})
            try:
                yield
            finally:
                blind.watch(targets)

        yield GameDay(
            prometheus,
            targets=4,
            rounds=[
                [
                    Drill(
                        "nobody works on a queue",
                        ["DispatchNobodyWorks", "DispatchOverdue", "DispatchQueueDepthHigh"],
                        nobody,
                    ),
                    Drill(
                        "a worker hangs", ["PacelineDown", "DispatchStaleRecoveryElevated"], lambda: frozen(hung.pid)
                    ),
                    Drill("a worker has another key", ["DispatchStartFailures"], wrong_key),
                    Drill("a function never ends", ["DispatchThreadsAbandoned"], while_there("hangs", "NEVER_ENDS")),
                    Drill("an effect is unknown", ["DispatchOutcomesUnknown"], nobody_knows),
                    Drill("the bank throttles", ["DownstreamThrottled"], while_there("throttles", "THROTTLED")),
                    Drill("nobody is scraped", ["PacelineAbsent"], nothing_scraped, blind),
                ],
                [Drill("a task blocks its loop", ["DispatchEventLoopBlocked"], while_there("blocks", "BLOCKS"))],
                [Drill("the service is killed", ["PacelineDown"], killed_service)],
            ],
        )


async def _knows(queue: DispatchQueue, item_type: str) -> bool:
    return item_type in {config.item_type for config in await queue.store.configs()}
