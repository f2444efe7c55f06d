"""Payments from the queue to the bank: no second with too many calls, no verdict that the bank did not give, no call
after the kill switch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any, cast

import httpx2

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.kill_switch import KillSwitch
from paceline.dispatch.model import EnqueueRequest, Postponed
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.registry import Registry
from paceline.dispatch.worker.engine import LocalEngine
from paceline.dispatch.worker.loop import DispatchWorker
from paceline.dispatch.worker.outcome_reporter import OutcomeReporter
from paceline.downstream import permits
from paceline.downstream.breaker import DownstreamBreaker
from paceline.downstream.permits import Grant, PermitPolicy, Permits
from paceline.downstream.ports import BreakerStatus, BreakerStore, PermitStore
from paceline.downstream.rate_gate import LimitAt, PermitRateGate, longest_hold, permit_policy
from paceline.durations import EPOCH, to_ms
from paceline.errors import Conflict, NotFound, StoreUnavailable
from paceline_payments.downstream.client import HttpDownstream
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.downstream.simulator import peak_per_second
from paceline_payments.execution import PaymentExecution
from paceline_payments.model import ITEM_TYPE, Party, Payment, PaymentStatus, StatusChange, Terms
from paceline_payments.operations import PaymentOperations
from paceline_payments.ports import DownstreamBusy, NewPayment, Notice, PaymentStore
from paceline_payments.rules import fingerprint
from paceline_payments.serialization import context_json
from tests.models.payment_store import MemoryPaymentStore
from tests.simulation.loop import Process
from tests.simulation.network import LONGEST_TRIP, Link, Network, Remote
from tests.simulation.scenarios.dispatch import SWITCH_SECONDS, RemoteQueue, SwitchedQueue
from tests.simulation.world import Violation, World

PAYMENTS = 12
SECONDS = 20.0
CALL_TIMEOUT = 2.0
PARTY = Party("Alice", "DE89370400440532013000")
TERMS = Terms("0.01", date(2027, 3, 1))


class Bank:
    """Executes payments, once each, and records when calls arrived."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.arrivals_us: list[int] = []
        self.departures_us: list[int] = []
        self.seen: set[str] = set()
        self.executed: set[str] = set()
        self.rejected: set[str] = set()

    def answer(self, method: str, key: str) -> tuple[int, dict[str, Any]]:
        self._world.note(f"the bank gets {method} {key}")
        self.arrivals_us.append(self._world.monotonic_us())
        if method == "GET":
            return self._knows(key)
        self.seen.add(key)
        draw = self._world.random.random()
        if key not in self.executed | self.rejected:
            if draw < 0.1:
                return 503, {"reason": "out of order"}
            (self.rejected if draw < 0.2 else self.executed).add(key)
        if draw > 0.9:
            return 500, {"reason": "the answer was lost"}
        return (201, {"reference": f"BANK-{key}"}) if key in self.executed else (422, {"reason": "account closed"})

    def _knows(self, key: str) -> tuple[int, dict[str, Any]]:
        if key in self.executed:
            return 200, {"status": "EXECUTED", "reference": f"BANK-{key}"}
        return (200, {"status": "REJECTED"}) if key in self.rejected else (404, {})


class BankTransport(httpx2.AsyncBaseTransport):
    """The wire to the bank: a call arrives within its timeout, or never; its answer may come late, or never."""

    def __init__(self, world: World, process: Process, server: Process, bank: Bank, queue: SwitchedQueue) -> None:
        self._world = world
        self._process = process
        self._server = server
        self._bank = bank
        self._queue = queue

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        world, network = self._world, self._world.network
        if world.random.random() < 0.2:
            await asyncio.sleep(_trip(network))  # connecting
        await request.extensions["trace"]("http11.send_request_headers.started", {})
        if self._queue.off_for > SWITCH_SECONDS:
            world.violated(f"a call leaves {self._queue.off_for:.2f} s after the kill switch was thrown")
        self._bank.departures_us.append(world.monotonic_us())
        await request.extensions["trace"]("http11.send_request_body.complete", {})
        key, method = request.headers["Idempotency-Key"], request.method
        reply: asyncio.Future[httpx2.Response] = world.loop.create_future()
        faults = network.faults

        def arrive() -> None:
            status, body = self._bank.answer(method, key)
            if not network.loses(self._process, self._server, faults.lost_answer):
                world.loop.post(self._process, network.trip(), deliver, status, body)
            elif network.resets():
                world.loop.post(self._process, network.trip(), deliver, None, {})

        def deliver(status: int | None, body: dict[str, Any]) -> None:
            if reply.done():
                return
            if status is None:
                reply.set_exception(httpx2.ReadError("reset"))
            else:
                reply.set_result(httpx2.Response(status, json=body))

        if not network.loses(self._process, self._server, faults.lost_request):
            world.loop.post(self._server, _trip(network), arrive)
        elif network.resets():
            world.loop.post(self._process, network.trip(), deliver, None, {})
        return await reply


def _trip(network: Network) -> float:
    return min(network.trip(), CALL_TIMEOUT * 0.99)


class Permitting:
    """The permits, in a store that may lose its data: then its incarnation changes."""

    def __init__(self, world: World, policy: PermitPolicy) -> None:
        self._world = world
        self._policy = policy
        self._hold_us = round(longest_hold(CALL_TIMEOUT) * 1e6)
        self._state = Permits({}, life="1")
        self._life = 1

    def forget(self) -> None:
        self._world.note("the permits are forgotten")
        self._life += 1

    def take(self, holder: str, hold: float) -> Grant:
        now_us = self._world.now_us()
        state = permits.reopened(self._state, str(self._life), self._hold_us, now_us)
        self._state, grant = permits.take(state, self._policy, holder, round(hold * 1e6), now_us)
        return grant

    def free(self, holder: str, at_us: int) -> None:
        state = permits.reopened(self._state, str(self._life), self._hold_us, self._world.now_us())
        self._state = permits.free(state, holder, at_us)


class MemoryBreaker:
    """The breaker's state."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: tuple[str, float, float] | None = None

    def read(self) -> BreakerStatus | None:
        if self._open is None:
            return None
        reason, pause, probe_at = self._open
        return BreakerStatus(reason, EPOCH, pause, probe_at - self._world.loop.time())

    def open(self, reason: str, pause: float) -> None:
        self._open = reason, pause, self._world.loop.time() + pause

    def claim_probe(self, hold: float) -> bool:
        if self._open is None or self._open[2] > self._world.loop.time():
            return False
        reason, pause, _ = self._open
        self._open = reason, pause, self._world.loop.time() + max(pause, hold)
        return True

    def close(self) -> None:
        self._open = None


class RemoteBreaker(Remote):
    """The breaker over a link. To close it is no end of the connection."""

    def __init__(self, breaker: MemoryBreaker, link: Link) -> None:
        super().__init__(BreakerStore, breaker, link)

    async def close(self) -> None:
        await self._link.call(self._store.close)


class WatchedPayments(MemoryPaymentStore):
    """Checks each change of status when it is made: the bank must have confirmed it."""

    def __init__(self, world: World, queue: SwitchedQueue, bank: Bank) -> None:
        super().__init__(queue, clock=world)
        self._bank = bank

    def _advance(self, step: StatusChange) -> bool:
        written = super()._advance(step)
        key, bank = step.payment_id, self._bank
        if not written:
            return False
        if step.after in (PaymentStatus.ACCEPTED, PaymentStatus.PROCESSING) and key not in bank.executed:
            raise Violation(f"{key} is {step.after}, and the bank has not executed it")
        if step.after is PaymentStatus.FAILED and key in bank.seen - bank.rejected:
            raise Violation(f"{key} is FAILED ({step.detail}), and the bank has not refused it")
        # One that the bank refused, and that was to be sent again, may be cancelled before it is.
        if step.after is PaymentStatus.CANCELLED and key in bank.seen - bank.rejected:
            raise Violation(f"{key} is CANCELLED, and the bank has seen it")
        return True


class NoNotifier:
    async def notify(self, notices: Sequence[Notice]) -> None:
        """Everybody knows."""


async def play(world: World) -> None:
    """A client schedules payments, two or three workers execute them, operators cancel, retry and switch off."""
    random = world.random
    database, cache, wire = world.server("database"), world.server("permits"), world.server("bank")
    queue, bank = SwitchedQueue(world), Bank(world)
    store, breaker = WatchedPayments(world, queue, bank), MemoryBreaker(world)
    tps = random.choice([2, 5, 10])
    limit_at: LimitAt = random.choice(["answer", "departure"])
    permitting = Permitting(world, permit_policy(tps, random.choice([1, 3])))
    await queue.configure(
        DispatchConfig(
            item_type=ITEM_TYPE,
            dispatch_interval_secs=1,
            jitter_window_ms=200,
            stale_claim_threshold_mins=random.choice([0.2, 0.5]),
            max_dispatch_retries=random.choice([2, 5]),
            retry_backoff_secs=1,
        )
    )
    with_breaker = random.random() < 0.5
    connection = DownstreamConnection("http://bank", timeout=CALL_TIMEOUT, attempts=random.choice([1, 3]))
    for number in range(PAYMENTS):
        await store.schedule([_new(world, f"p{number}")])

    def downstream(process: Process, remote: QueueStore) -> HttpDownstream:
        async def is_on() -> bool:
            config = await remote.config(ITEM_TYPE)
            return config is not None and config.enabled

        gate = PermitRateGate(
            cast(PermitStore, Remote(PermitStore, permitting, world.link(process, cache, 2.0))),
            call_timeout=CALL_TIMEOUT,
            limit_at=limit_at,
            monotonic=time.monotonic,
        )
        guard = DownstreamBreaker(
            cast(BreakerStore, RemoteBreaker(breaker, world.link(process, database))),
            call_timeout=CALL_TIMEOUT,
            monotonic=time.monotonic,
        )
        return HttpDownstream(
            connection,
            gate,
            switch=KillSwitch(is_on),
            breaker=guard if with_breaker else None,
            transport=BankTransport(world, process, wire, bank, queue),
        )

    def remote_queue(process: Process) -> QueueStore:
        return cast(QueueStore, RemoteQueue(queue, world.link(process, database), world))

    async def worker(process: Process) -> None:
        remote = remote_queue(process)
        payments = cast(PaymentStore, Remote(PaymentStore, store, world.link(process, database)))
        execution = PaymentExecution(payments, downstream(process, remote), NoNotifier())
        registry = Registry()
        registry.register(ITEM_TYPE, execution.execute)
        engine = LocalEngine(registry, OutcomeReporter(remote), concurrency=10)
        await DispatchWorker(remote, engine, [ITEM_TYPE]).run()

    async def operator(process: Process) -> None:
        remote = remote_queue(process)
        payments = cast(PaymentStore, Remote(PaymentStore, store, world.link(process, database)))
        operations = PaymentOperations(payments, downstream(process, remote))
        while True:
            await asyncio.sleep(random.expovariate(1 / 3))
            key, act = f"p{random.randrange(PAYMENTS)}", random.random()
            try:
                if act < 0.3:
                    await remote.change(ITEM_TYPE, {"enabled": random.random() < 0.6})
                elif act < 0.5:
                    await operations.cancel(key)
                elif act < 0.55:
                    permitting.forget()
                else:
                    await operations.retry(key, "operator")
            except (StoreUnavailable, Conflict, NotFound, DownstreamBusy, Postponed):
                continue

    for number in range(random.randint(2, 3)):
        world.process(f"worker-{number}", worker)
    world.process("operator", operator)
    await world.endure(SECONDS)
    world.heal()
    for process in world.loop.processes:
        if process.name == "operator":
            world.loop.kill(process)
    await asyncio.sleep(LONGEST_TRIP)  # a call of the operator's may still be on its way, and switch off
    await queue.change(ITEM_TYPE, {"enabled": True})
    resting = (PaymentStatus.PROCESSING, PaymentStatus.FAILED, PaymentStatus.CANCELLED, PaymentStatus.UNKNOWN)
    await world.until(
        lambda: all(record.status in resting for record in store._records.values()), 600, "payments are not over"
    )
    peak = peak_per_second(bank.arrivals_us if limit_at == "answer" else bank.departures_us)
    if peak > tps:
        raise Violation(f"{peak} calls within a second, of {tps}, counted at the {limit_at}")
    for key, record in store._records.items():
        unsettled = record.status in (PaymentStatus.FAILED, PaymentStatus.CANCELLED)
        if unsettled and key in bank.seen - bank.rejected:
            raise Violation(f"{key} is {record.status}, and the bank has seen it and not refused it")
        if record.status is PaymentStatus.PROCESSING and key not in bank.executed:
            raise Violation(f"{key} is PROCESSING, and the bank has not executed it")


def _new(world: World, key: str) -> NewPayment:
    scheduled = EPOCH + timedelta(microseconds=world.now_us(), seconds=world.random.uniform(0, 15))
    payment = Payment(key, "12.30", "EUR", PARTY, PARTY, scheduled)
    item = EnqueueRequest(ITEM_TYPE, key, context_json(payment, TERMS, to_ms(scheduled)), scheduled, True)
    return NewPayment(payment, TERMS, scheduled, fingerprint(payment), item)
