"""Ids that no HTTP header can carry: refused on every way in; a stored one fails its own payment and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx2 as httpx
import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import gave_up
from paceline.dispatch.model import EnqueueRequest, GiveUp
from paceline.dispatch.status import Status
from paceline.downstream.breaker import DownstreamBreaker
from paceline.durations import to_ms
from paceline.errors import ConfigurationError, InvalidInput
from paceline.messaging import LogEntry, Record
from paceline_payments.downstream.client import HttpDownstream
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.downstream.simulator import Behaviour, Simulator, SimulatorTransport
from paceline_payments.execution import PaymentExecution
from paceline_payments.feed import FeedFormat, Line, parse
from paceline_payments.intake_topic import PaymentTopic, rejected_topic
from paceline_payments.model import ITEM_TYPE, IntakeResult, Party, Payment, PaymentEvent, PaymentStatus, Terms
from paceline_payments.operations import PaymentOperations
from paceline_payments.parsing import payment_of_fields, payment_of_json
from paceline_payments.ports import InquiryStatus, NewPayment, PaymentUnsendable
from paceline_payments.serialization import context_json
from tests.models.payment_store import MemoryPaymentStore
from tests.models.queue_store import MemoryQueueStore
from tests.unit.apps.payments.downstream.test_client import OpenGate, Pauses, answering, client_of

AT = datetime(2030, 3, 1, 16, 0, tzinfo=UTC)
ALICE, BOB = Party("Alice", "DE89370400440532013000"), Party("Bob", "GB29NWBK60161331926819")
TERMS = Terms("0.00", date(2030, 3, 1))
UNSENDABLE = [".", "..", "Zahlung-Ä", "p-1 ", " p-1", " ", "p\u00a01", "支付", "p-😀"]
SENDABLE = ["p-1", "...", ".a", "a b", "!", "~", '"quoted"', "a/b?c#d%20", "x" * 128]


def document(payment_id: str) -> dict[str, Any]:
    return {
        "paymentId": payment_id,
        "amount": "12.34",
        "currency": "EUR",
        "payer": ALICE.to_json(),
        "payee": BOB.to_json(),
        "executeAt": "2030-03-01T16:00:00Z",
    }


def fields(payment_id: str) -> list[str]:
    return [payment_id, "12.34", "EUR", "Alice", ALICE.iban, "Bob", BOB.iban, "2030-03-01T16:00:00Z"]


def payment(payment_id: str) -> Payment:
    return Payment(payment_id, "12.30", "EUR", ALICE, BOB, AT)


# -- intake ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payment_id", UNSENDABLE)
def test_an_id_that_no_header_can_carry_is_refused_with_what_is_allowed(payment_id: str) -> None:
    with pytest.raises(InvalidInput, match=r"paymentId: .*visible ASCII"):
        payment_of_json(document(payment_id))
    with pytest.raises(InvalidInput, match=r"paymentId: .*visible ASCII"):
        payment_of_fields(fields(payment_id))


@pytest.mark.parametrize("payment_id", SENDABLE)
def test_an_id_that_a_header_can_carry_is_accepted(payment_id: str) -> None:
    assert payment_of_json(document(payment_id)) == payment_of_fields(fields(payment_id))


@pytest.mark.parametrize("payment_id", ["Zahlung-Ä", "p-1 "])
def test_a_line_of_a_feed_with_such_an_id_is_rejected_and_shown(payment_id: str) -> None:
    for kind, text in (
        (FeedFormat.CSV, ",".join(fields(payment_id))),
        (FeedFormat.JSONL, json.dumps(document(payment_id))),
    ):
        accepted, (rejection,) = parse([Line(2, f"{text}\n".encode(), 0)], kind)
        assert accepted == []
        assert (rejection.line, rejection.payment_id) == (2, payment_id)
        assert rejection.reason.startswith("paymentId: ")


async def test_a_record_of_a_topic_with_such_an_id_is_published_as_rejected() -> None:
    published: list[Record] = []

    async def publish(records: Sequence[Record]) -> list[None]:
        published.extend(records)
        return [None] * len(records)

    async def initiate(payments: Sequence[Payment]) -> list[IntakeResult]:
        raise AssertionError(payments)

    topic = PaymentTopic(cast(Any, SimpleNamespace(publish=publish)), "t", initiate)
    await topic._accept([LogEntry(Record("t", "k", json.dumps(document("Zahlung-Ä"))), 0, 7)])
    (rejection,) = published
    assert rejection.topic == rejected_topic("t")
    assert json.loads(rejection.value)["reason"].startswith("paymentId: ")


# -- execution -------------------------------------------------------------------------------------------------------


class Breaker:
    """Admits every call, and records what is reported."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    async def admit(self) -> bool:
        return False

    async def is_open(self) -> bool:
        return False

    async def record_failure(self, reason: str, _probe: bool, *, at_once: bool = False) -> None:
        self.failures.append(reason)

    async def record_success(self, _probe: bool) -> None: ...


def bank(transport: httpx.AsyncBaseTransport) -> tuple[HttpDownstream, OpenGate, Breaker]:
    gate, breaker = OpenGate(), Breaker()
    connection = DownstreamConnection("http://bank")
    downstream = HttpDownstream(
        connection, gate, transport=transport, pause=Pauses(), breaker=cast(DownstreamBreaker, breaker)
    )
    return downstream, gate, breaker


@pytest.mark.parametrize("payment_id", UNSENDABLE)
async def test_a_stored_payment_with_such_an_id_is_no_outage_and_takes_no_permit(payment_id: str) -> None:
    simulator = Simulator(Behaviour(latency_ms=0))
    downstream, gate, breaker = bank(SimulatorTransport(simulator))
    with pytest.raises(PaymentUnsendable, match="visible ASCII"):
        await downstream.pay(payment(payment_id))
    assert (gate.entered, breaker.failures, simulator.calls) == (0, [], [])


async def test_the_inquiry_needs_no_header_and_asks_for_any_id() -> None:
    transport, requests = answering(404)
    answer = await client_of(transport).inquire(payment("Zahlung-Ä "))
    assert answer.status is InquiryStatus.NEVER_SEEN
    (request,) = requests
    assert str(request.url) == "http://bank/api/payments/Zahlung-%C3%84%20"
    assert "Idempotency-Key" not in request.headers


async def test_a_token_that_no_header_can_carry_is_a_wrong_connection(tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("first\nsecond")
    with pytest.raises(ConfigurationError, match="one line"):
        DownstreamConnection("http://bank", token_file=token)


class Stored:
    """Payments that were stored past the intake, and their execution."""

    def __init__(self) -> None:
        self.queue = MemoryQueueStore()
        self.store = MemoryPaymentStore(self.queue)
        self.simulator = Simulator(Behaviour(latency_ms=0))
        self.downstream, _, self.breaker = bank(SimulatorTransport(self.simulator))
        self.execution = PaymentExecution(self.store, self.downstream, cast(Any, None))
        self.operations = PaymentOperations(self.store, self.downstream)

    async def keep(self, payment_id: str) -> None:
        await self.queue.configure(DispatchConfig(item_type=ITEM_TYPE))
        context = context_json(payment(payment_id), TERMS, to_ms(AT))
        item = EnqueueRequest(ITEM_TYPE, payment_id, context, AT, True)
        await self.store.schedule([NewPayment(payment(payment_id), TERMS, AT, 1, item)])

    async def run(self, payment_id: str, verdict: str | None = None) -> None:
        """An execution as an engine runs it; with `verdict`, one that ended so."""
        batch = await self.queue.claim(ITEM_TYPE, 10, timedelta(days=36500))
        (claim,) = [item.claim for item in batch.items]
        if verdict is not None:
            await self.store.begin([payment_id])
            await self.queue.settle([gave_up(claim, "it did not answer", verdict)])
            return
        with pytest.raises(GiveUp) as given_up:
            await self.execution.execute_payment(payment(payment_id))
        assert given_up.value.verdict == PaymentEvent.UNSENT
        await self.queue.settle([gave_up(claim, str(given_up.value), given_up.value.verdict)])

    async def standing(self, payment_id: str) -> tuple[PaymentStatus, Status]:
        row = await self.queue.find(ITEM_TYPE, payment_id)
        assert row is not None
        return (await self.store.find([payment_id]))[payment_id].status, row[0].status


@pytest.mark.parametrize("payment_id", ["Zahlung-Ä", "p-1 "])
async def test_a_stored_payment_with_such_an_id_fails_with_the_reason_and_can_be_retried_and_discarded(
    payment_id: str,
) -> None:
    stored = Stored()
    await stored.keep(payment_id)
    await stored.run(payment_id)
    assert await stored.standing(payment_id) == (PaymentStatus.FAILED, Status.DEAD_LETTER)
    record, _ = await stored.operations.show(payment_id)
    assert "visible ASCII" in str(record.reason)
    assert (await stored.operations.retry(payment_id, "me")).status is PaymentStatus.SCHEDULED
    await stored.run(payment_id)
    await stored.queue.redirect(ITEM_TYPE, [payment_id], Status.CANCELLED)
    assert await stored.standing(payment_id) == (PaymentStatus.FAILED, Status.CANCELLED)
    assert (stored.simulator.calls, stored.breaker.failures) == ([], [])


async def test_one_whose_outcome_is_unknown_is_decided_by_the_inquiry() -> None:
    stored = Stored()
    await stored.keep("Zahlung-Ä")
    await stored.run("Zahlung-Ä", "LOST")
    assert (await stored.standing("Zahlung-Ä"))[0] is PaymentStatus.UNKNOWN
    assert (await stored.operations.retry("Zahlung-Ä", "me")).status is PaymentStatus.SCHEDULED
    await stored.run("Zahlung-Ä")
    assert await stored.standing("Zahlung-Ä") == (PaymentStatus.FAILED, Status.DEAD_LETTER)


async def test_one_that_waits_can_be_cancelled() -> None:
    stored = Stored()
    await stored.keep("Zahlung-Ä")
    assert (await stored.operations.cancel("Zahlung-Ä")).status is PaymentStatus.CANCELLED
