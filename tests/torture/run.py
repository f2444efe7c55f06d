"""One run: start everything, let clients call and faults happen, heal, wait for the end, write down what is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx2 as httpx

from paceline.testing import eventually
from tests.torture import final_state
from tests.torture.faults import PlannedFault, plan_faults
from tests.torture.history import Recorder
from tests.torture.installation import CLIENT, DATABASE, PROGRAMS, TPS, Installation
from tests.torture.load import Site, by_status
from tests.torture.load.limits import PLANS, Counts, call_at_rate
from tests.torture.load.messages import QUOTA, Messages
from tests.torture.load.payments import Payments
from tests.torture.load.slots import CONFIG, LIMITS, WINDOW, Bookings, change_limits
from tests.torture.load.tasks import Steps
from tests.torture.steps import ITEM_TYPE, steps_on

SETTLE_WITHIN = 240.0
"""Seconds after the last fault in which everything must be over."""
LAST_CALLS = 60.0
"""Seconds in which clients end their last call."""
LAG = 0.1
"""Seconds by which this process may be late before it is noted."""
STARVED = 0.5
"""The share of a second in which a program may wait for a core before that counts as a fault: the machine's."""
DISPATCH = {"staleClaimThresholdMins": 0.2, "maxDispatchRetries": 50, "retryBackoffSecs": 1}

Say = Callable[[str], None]


async def torture(directory: Path, seed: int, minutes: float, say: Say, *, redis: bool = True) -> None:
    """Runs for so long. What happened is in the logs in the directory."""
    random = Random(f"torture {seed}")
    recorder = Recorder(directory / "clients.jsonl")
    say(f"starting PostgreSQL, {'Redis, ' if redis else ''}Kafka, two services and six workers")
    async with Installation(directory, seed, redis=redis) as installation:
        tasks, step = steps_on(f"postgresql://postgres@127.0.0.1:{installation.links[CLIENT].port}/{DATABASE}")
        async with tasks, httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as http:
            site = Site(installation.services, recorder, random, asyncio.Event(), http)
            await _prepare(site)
            recorder.write(
                "run",
                seed=seed,
                minutes=minutes,
                wall=time.time() - time.monotonic(),
                tps=TPS,
                plans=PLANS,
                quota=QUOTA,
                redis=redis,
            )
            supervising = asyncio.create_task(
                installation.supervise(lambda name, status: recorder.write("died", program=name, status=status))
            )
            starving = asyncio.create_task(_watch_cores(installation, recorder))
            faults = plan_faults(
                random, minutes * 60, list(PROGRAMS), list(installation.servers), list(installation.links)
            )
            say(f"{len(faults)} faults in {minutes:g} minutes")
            clients = asyncio.gather(*_clients(site, step))
            try:
                await _endure(installation, faults, minutes * 60, recorder, say)
                site.stop.set()
                # The outcome of a call that takes longer stays unknown.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_CALLS):
                        await clients
            finally:
                clients.cancel()
        await _settle(installation, directory, recorder, say)
        starving.cancel()
        supervising.cancel()
        await asyncio.to_thread(final_state.record, installation.database_url, recorder)
    recorder.close()


async def _prepare(site: Site) -> None:
    """Plans, configs and settings of dispatch, before anything fails."""

    async def put(method: str, path: str, document: object) -> None:
        outcome, answer = await site.call("prepare", method, path, document, judge=by_status(200))
        if outcome != "ok":
            raise RuntimeError(f"{method} {path}: {answer}")

    for name, plan in PLANS.items():
        await put("PUT", f"/admin/plans/{name}", {**plan, "onError": "closed"})
    for name, most, window in ((CONFIG, max(LIMITS), WINDOW), ("default", 1000, "PT1S")):
        document = {"configName": name, "maxPerWindow": most, "windowSize": window}
        await put("POST", "/admin/rate-limit/config", document)
    for item_type in (ITEM_TYPE, "PAYMENT"):

        async def is_defined(path: str = f"/admin/dispatch/{item_type}") -> bool:
            return (await site.http.get(site.services[0] + path)).status_code == 200

        await eventually(is_defined, within=60, every=0.2)
        await put("PATCH", f"/admin/dispatch/{item_type}", DISPATCH)


def _clients(site: Site, step: object) -> list[asyncio.Future[None]]:
    counts, bookings, steps = Counts(site), Bookings(site), Steps(site, step)
    payments, messages = Payments(site), Messages(site)
    runs = [counts.run(), counts.run(), counts.run(), call_at_rate(site, "span"), call_at_rate(site, "bucket")]
    runs += [bookings.run(), bookings.run(), change_limits(site), steps.run(), steps.run()]
    runs += [payments.run(), payments.run(), payments.run_bursts(), messages.run(), messages.run()]
    return [asyncio.ensure_future(run) for run in runs]


async def _endure(
    installation: Installation, faults: list[PlannedFault], seconds: float, recorder: Recorder, say: Say
) -> None:
    """Lets the faults happen, each at its time; returns when all are healed and the time is over."""
    began = time.monotonic()

    async def suffer(number: int, fault: PlannedFault) -> None:
        await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
        say(f"{fault.at:7.1f} s  {fault.what:8} {fault.target}, {fault.seconds:.1f} s")
        recorder.write("fault", fault=number, what=fault.what, target=fault.target)
        await installation.begin(fault)
        await asyncio.sleep(fault.seconds)
        await installation.end(fault)
        recorder.write("healed", fault=number)

    async with asyncio.TaskGroup() as group:
        for number, fault in enumerate(faults):
            group.create_task(suffer(number, fault))
        watching = group.create_task(_watch_lag(recorder))
        await asyncio.sleep(seconds)
        watching.cancel()


async def _watch_lag(recorder: Recorder) -> None:
    """Notes when this process, which is also every link, is late itself: what is slow then is the machine."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(LAG)
        if (late := time.monotonic() - before - LAG) > LAG:
            recorder.write("lag", seconds=round(late, 3))


async def _watch_cores(installation: Installation, recorder: Recorder) -> None:
    """Notes when a program had to wait for a core: an answer that it does not read in time is as good as lost."""
    before, waits = time.monotonic(), installation.core_waits()
    while True:
        await asyncio.sleep(1.0)
        now, waited = time.monotonic(), installation.core_waits()
        for (name, pid), seconds in waited.items():
            if seconds - waits.get((name, pid), seconds) > STARVED * (now - before):
                recorder.write("starved", program=name, seconds=round(now - before, 3))
        before, waits = now, waited


async def _settle(installation: Installation, directory: Path, recorder: Recorder, say: Say) -> None:
    """Waits until nothing is left to do. What is left after that is for the checker to report."""
    began = time.monotonic()
    logs = [directory / "clients.jsonl", installation.log("counterparties")]
    left = [""]

    async def is_over() -> bool:
        left[0] = await asyncio.to_thread(final_state.unfinished, installation.database_url, *logs)
        return not left[0]

    say("everything is healed")
    try:
        await eventually(is_over, within=SETTLE_WITHIN, every=2.0)
        say("nothing is left to do")
    except TimeoutError:
        say(f"still to be done after {SETTLE_WITHIN:g} s: {left[0]}")
    recorder.write("settled", seconds=round(time.monotonic() - began, 1), left=left[0])
