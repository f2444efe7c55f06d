"""Reconciliation on every SQL store: planned = executed = bank, and every difference named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import gave_up
from paceline.dispatch.stores.sql import SqlQueueStore
from paceline.errors import InvalidInput
from paceline.slots.model import SlotRequest, WindowPolicy
from paceline.slots.stores.sql import SqlSlotStore
from paceline.sql.engine import Database
from paceline_payments.model import (
    ITEM_TYPE,
    OWNER,
    Payment,
    PaymentEvent,
    PaymentFilter,
    PaymentStatus,
    StatusChange,
    slot_id,
)
from paceline_payments.operations import PaymentOperations
from paceline_payments.reconciliation.comparing import reconcile
from paceline_payments.reconciliation.model import (
    Difference,
    GroupKey,
    Kind,
    Reconciliation,
    Return,
    StatementInfo,
    StatementSummary,
)
from paceline_payments.reconciliation.statement import COLUMNS, StatementFormat, statement_lines
from paceline_payments.stores.moves import PaymentFollower
from paceline_payments.stores.reconciliation import SqlReconciliationStore
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.conftest import slot_store_url
from tests.contracts.payments.records import AT, new, payment
from tests.every_schema import database

HEADER = ",".join(COLUMNS)
CAMT = """<?xml version="1.0"?><Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.08"><BkToCstmrStmt>
<GrpHdr><MsgId>S</MsgId></GrpHdr><Stmt><Id>1</Id>
<Ntry><Amt Ccy="EUR">24.60</Amt><CdtDbtInd>DBIT</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts>
<BookgDt><Dt>2030-03-01</Dt></BookgDt><AcctSvcrRef>BANK-a</AcctSvcrRef><NtryDtls>
<TxDtls><Refs><AcctSvcrRef>BANK-a</AcctSvcrRef><EndToEndId>a</EndToEndId></Refs><Amt Ccy="EUR">12.30000</Amt></TxDtls>
<TxDtls><Refs><AcctSvcrRef>BANK-a</AcctSvcrRef><EndToEndId>b</EndToEndId></Refs>
<AmtDtls><TxAmt><Amt Ccy="EUR">12.30</Amt></TxAmt></AmtDtls></TxDtls>
</NtryDtls></Ntry>
<Ntry><Amt Ccy="EUR">3.00</Amt><Sts>BOOK</Sts><AddtlNtryInf>monthly fee</AddtlNtryInf></Ntry>
<Ntry><Amt Ccy="EUR">12.30</Amt><Sts>PDNG</Sts><NtryDtls><TxDtls><Refs><EndToEndId>c</EndToEndId></Refs></TxDtls>
</NtryDtls></Ntry></Stmt></BkToCstmrStmt></Document>"""


@dataclass
class Bench:
    database: Database
    payments: SqlPaymentStore
    queue: SqlQueueStore
    slots: SqlSlotStore

    async def keep(self, *names: str, executed: bool = True, feed: str | None = None) -> None:
        booked = [SlotRequest.of(slot_id(name), AT) for name in names]
        await self.slots.book("default", booked, owner=OWNER)
        await self.payments.schedule([new(payment(name))._replace(feed_id=feed) for name in names])
        executions = [
            StatusChange.by(PaymentEvent.EXECUTED, name, PaymentStatus.SCHEDULED, "done", f"BANK-{name}")
            for name in names
            if executed
        ]
        for first in range(0, len(executions), 200):  # each is a statement, and all of a call are one transaction
            await self.payments.advance(executions[first : first + 200])

    async def run(
        self, body: str, kind: StatementFormat = StatementFormat.CSV, selection: PaymentFilter | None = None
    ) -> tuple[Reconciliation, list[Difference]]:
        differences, summary = list[Difference](), StatementSummary()
        store, lines = SqlReconciliationStore(self.database), statement_lines(blocks(body), kind, summary)
        result = await reconcile(store, lines, differences.append, selection, summary=summary)
        return result, differences


@pytest.fixture(params=["sqlite", "postgresql"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    shared = await database(slot_store_url(request.param, request))
    slots = SqlSlotStore(shared, owns_database=False)
    queue = SqlQueueStore(shared, {ITEM_TYPE: PaymentFollower()})
    await queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    await slots.configure("default", WindowPolicy(100, "PT4S"))
    yield Bench(shared, SqlPaymentStore(shared), queue, slots)
    await queue.close()


async def blocks(body: str) -> AsyncIterator[bytes]:
    raw = body.encode()
    for first in range(0, len(raw), 100):
        yield raw[first : first + 100]


def statement(*lines: str) -> str:
    return "\n".join([HEADER, *lines]) + "\n"


def booked(name: str, amount: str = "12.30", status: str = "EXECUTED", reference: str | None = None) -> str:
    return f"{name},{amount},EUR,{status},{reference or f'BANK-{name}'},2030-03-01T16:00:01Z"


async def test_what_is_the_same_on_both_sides_is_matched(bench: Bench) -> None:
    names = [f"p{number:04}" for number in range(2100)]
    await bench.keep(*names, feed="feed-1")
    await bench.keep("alone")
    result, differences = await bench.run(statement(booked("alone"), *map(booked, reversed(names))))
    assert (result.matched, differences, result.is_clean) == (2101, [], True)
    group = result.groups[GroupKey("feed-1", date(2030, 3, 1), "EUR")]
    assert (group.planned, group.executed, group.bank) == (2100, 2100, 2100)
    assert group.planned_minor == group.executed_minor == group.bank_minor == 2100 * 1230
    assert set(result.groups) == {GroupKey(feed, date(2030, 3, 1), "EUR") for feed in ("feed-1", None)}


async def test_every_difference_is_named(bench: Bench) -> None:
    await bench.keep("same", "lost", "amount", "reference", "reversed")
    await bench.keep("waits", "surprise", executed=False)
    body = statement(
        booked("same"),
        booked("amount", "99.00"),
        booked("reference", reference="BANK-other"),
        booked("reversed", status="REVERSED"),
        booked("surprise"),
        booked("nobody"),
        booked("refused-elsewhere", status="REJECTED"),
        booked("same"),
    )
    result, differences = await bench.run(body)
    assert sorted((one.kind.value, one.payment_id, one.field) for one in differences) == [
        ("different", "amount", "amount"),
        ("different", "reference", "reference"),
        ("different", "reversed", "status"),
        ("different", "same", "twice"),
        ("different", "surprise", "status"),
        ("missingAtBank", "lost", "status"),
        ("missingHere", "nobody", "payment"),
    ]
    assert result.counts[Kind.DIFFERENT] == 5
    assert not result.is_clean
    (amount,) = [one for one in differences if one.payment_id == "amount"]
    assert (amount.here, amount.bank) == ("12.30 EUR", "99.00 EUR")
    (nobody,) = [one for one in differences if one.payment_id == "nobody"]
    assert nobody.bank == "EXECUTED 12.30 EUR"
    (surprise,) = [one for one in differences if one.payment_id == "surprise"]
    assert (surprise.here, surprise.bank) == ("SCHEDULED", "EXECUTED")


async def test_amounts_have_the_decimals_of_their_own_currency(bench: Bench) -> None:
    await bench.payments.schedule([new(payment("yen", "1234", "JPY"))])
    _, differences = await bench.run(statement(booked("yen", status="PENDING")))
    assert [(one.field, one.here, one.bank) for one in differences] == [("currency", "1234 JPY", "12.30 EUR")]


async def test_unknown_payments_zombies_overdue_ones_and_leaked_slots_are_part_of_it(bench: Bench) -> None:
    await bench.keep("unknown", "zombie", executed=False)
    past = datetime.now(UTC) - timedelta(hours=3)
    late = Payment(*payment("late")[:5], past)
    await bench.payments.schedule([new(late, past)])
    batch = await bench.queue.claim(ITEM_TYPE, 10, timedelta(days=36500), now=AT)
    await bench.payments.begin(["unknown"])
    claims = {item.claim.item_id: item.claim for item in batch.items}
    await bench.queue.settle([gave_up(claims["unknown"], "no answer", "LOST")])
    await bench.slots.book("default", [SlotRequest.of(slot_id("never-kept"), AT)], owner=OWNER)
    await bench.database.write(
        lambda c: c.exec_driver_sql(
            "UPDATE paceline_dispatch_queue SET queue_status = 'CANCELLED' WHERE item_id = 'zombie'"
        )
    )
    await bench.database.write(
        lambda c: c.exec_driver_sql(
            "UPDATE paceline_dispatch_queue SET due_at = scheduled_exec_time WHERE item_id = 'late'"
        )
    )
    result, differences = await bench.run(statement())
    assert sorted((one.kind.value, one.payment_id, one.field) for one in differences) == [
        ("leakedSlots", "never-kept", "slot"),
        ("stuck", "late", "overdue"),
        ("stuck", "zombie", "item"),
        ("unknown", "unknown", "status"),
    ]
    assert result.matched == 0


async def test_a_refusal_on_both_sides_is_no_difference(bench: Bench) -> None:
    await bench.keep("r", "c", executed=False)
    batch = await bench.queue.claim(ITEM_TYPE, 10, timedelta(days=36500), now=AT)
    await bench.queue.settle(
        [gave_up(item.claim, "closed", "REFUSED") for item in batch.items if item.claim.item_id == "r"]
    )
    assert await bench.payments.move(["c"], PaymentEvent.CANCEL, "changed my mind") == {}
    result, differences = await bench.run(statement(booked("r", status="REJECTED")))
    assert (differences, result.matched) == ([], 1)
    group = result.groups[GroupKey(None, date(2030, 3, 1), "EUR")]
    assert (group.planned, group.executed, group.bank) == (1, 0, 0), "what was cancelled is not planned"


async def test_of_a_feed_only_its_payments_are_compared(bench: Bench) -> None:
    await bench.keep("a", "b", feed="feed-1")
    await bench.keep("c")
    selection = PaymentFilter(feed_id="feed-1")
    result, differences = await bench.run(statement(booked("a"), booked("c"), booked("x")), selection=selection)
    assert result.matched == 1
    assert {(one.kind, one.payment_id) for one in differences} == {
        (Kind.MISSING_AT_BANK, "b"),
        (Kind.MISSING_HERE, "x"),
    }


async def test_a_camt053_statement(bench: Bench) -> None:
    await bench.keep("a", "b")
    await bench.keep("c", executed=False)
    result, differences = await bench.run(CAMT, StatementFormat.CAMT053)
    assert [(one.payment_id, one.field, one.bank) for one in differences] == [("b", "reference", "BANK-a")]
    assert result.matched == 2


CAMT054 = """<Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.054.001.08"><BkToCstmrDbtCdtNtfctn>
<GrpHdr><MsgId>N</MsgId></GrpHdr><Ntfctn><Id>7</Id>
<FrToDt><FrDtTm>2030-03-01T00:00:00</FrDtTm><ToDtTm>2030-03-02T00:00:00</ToDtTm></FrToDt>
<Acct><Id><IBAN>DE89370400440532013000</IBAN></Id></Acct>
<Ntry><Amt Ccy="EUR">12.30</Amt><CdtDbtInd>CRDT</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts><NtryDtls><TxDtls>
<Refs><EndToEndId>NOTPROVIDED</EndToEndId><TxId>BANK-a</TxId></Refs><Amt Ccy="EUR">12.30</Amt>
<RtrInf><Rsn><Cd>AC04</Cd></Rsn><AddtlInf>account closed</AddtlInf></RtrInf>
<SplmtryData><Envlp><x xmlns="urn:x"><Refs><EndToEndId>b</EndToEndId></Refs></x></Envlp></SplmtryData>
</TxDtls></NtryDtls></Ntry>
<Ntry><Amt Ccy="EUR">99.00</Amt><CdtDbtInd>CRDT</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts><NtryDtls><TxDtls>
<Refs><EndToEndId>b</EndToEndId></Refs></TxDtls></NtryDtls></Ntry>
<Ntry><Amt Ccy="EUR">3.00</Amt><CdtDbtInd>DBIT</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts><AcctSvcrRef>FEE</AcctSvcrRef></Ntry>
</Ntfctn></BkToCstmrDbtCdtNtfctn></Document>"""


async def test_a_return_is_no_execution(bench: Bench) -> None:
    """A credit that says what it returns was matched as executed."""
    await bench.keep("a", "b")
    summary, returns = StatementSummary(), list[Return]()

    async def record(some: Sequence[Return]) -> None:
        returns.extend(some)
        await PaymentOperations(bench.payments).record_returns(some)

    for number in (1, 0):  # the same notification again returns nothing more
        differences: list[Difference] = []
        lines = statement_lines(blocks(CAMT054), StatementFormat.CAMT053, summary)
        store = SqlReconciliationStore(bench.database)
        result = await reconcile(store, lines, differences.append, summary=summary, record_returns=record)
        assert (result.returned, [(one.payment_id, one.kind) for one in differences]) == (
            number,
            [("b", Kind.MISSING_AT_BANK)],
        )
    assert returns == [Return("a", 1230, "EUR", "AC04: account closed")]
    records = await bench.payments.find(["a", "b"])
    assert (records["a"].status, records["a"].reason) == (PaymentStatus.RETURNED, "AC04: account closed")
    assert records["b"].status is PaymentStatus.ACCEPTED
    assert summary.statements[0] == StatementInfo(
        "7", "DE89370400440532013000", "2030-03-01T00:00:00", "2030-03-02T00:00:00"
    )
    assert summary.others == 4  # incoming money and a fee, twice


DIGEST = "0123456789abcdef"


async def test_payments_of_a_document_are_found_by_its_ids_and_as_a_batch(bench: Bench) -> None:
    await bench.keep(*(f"M1-P1-{name}-{DIGEST}" for name in ("i1", "i2")), f"M1-P2-i1-{DIGEST}")
    refs = "<MsgId>M1</MsgId><PmtInfId>P2</PmtInfId><InstrId>i1</InstrId><EndToEndId>SALARY</EndToEndId>"
    batch = "<Btch><MsgId>M1</MsgId><PmtInfId>P1</PmtInfId><NbOfTxs>{}</NbOfTxs></Btch>"
    entry = "<Ntry><Amt Ccy='EUR'>{}</Amt><CdtDbtInd>DBIT</CdtDbtInd><Sts>BOOK</Sts><NtryDtls>{}</NtryDtls></Ntry>"
    single = entry.format("12.30", f"<TxDtls><Refs>{refs}</Refs></TxDtls>")
    head, tail = CAMT.partition("<Ntry>")[0], "</Stmt></BkToCstmrStmt></Document>"
    body = f"{head}{entry.format('24.60', batch.format(2))}{single}{tail}"
    result, differences = await bench.run(body, StatementFormat.CAMT053)
    assert (result.matched, differences) == (3, [])
    body = f"{head}{entry.format('36.90', batch.format(3))}{single}{tail}"
    result, differences = await bench.run(body, StatementFormat.CAMT053)
    assert [(one.payment_id, one.field, one.here, one.bank) for one in differences] == [
        ("P1", "batch", "2 payments, 24.60 EUR", "3 payments, 36.90 EUR")
    ]


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        ("", StatementFormat.CSV, "line 1: must name the columns"),
        ("a,b\n", StatementFormat.CSV, "line 1: must name the columns"),
        (f"{HEADER}\np,1.234,EUR,EXECUTED,,\n", StatementFormat.CSV, "line 2, amount"),
        (f"{HEADER}\np,1,EUR,DONE,,\n", StatementFormat.CSV, "line 2, status: 'DONE' is unknown"),
        (f"{HEADER}\np,1\n", StatementFormat.CSV, "line 2: has 2 fields"),
        ("<x/>", StatementFormat.CAMT053, "must be a Document"),
        ('<!DOCTYPE x [<!ENTITY a "b">]>' + CAMT.partition("?>")[2], StatementFormat.CAMT053, "document type"),
        (CAMT[:-30], StatementFormat.CAMT053, "not well-formed"),
    ],
)
async def test_a_statement_that_can_not_be_read_says_where(
    bench: Bench, body: str, kind: StatementFormat, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        await bench.run(body, kind)
