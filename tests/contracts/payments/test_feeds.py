"""Feeds as objects, on every SQL store: checked before anything is accepted, resumed, cancelled, sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.encryption import Encryption
from paceline.dispatch.stores.sql import SqlQueueStore
from paceline.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from paceline.slots.model import WindowPolicy
from paceline.slots.scheduler import SlotScheduler
from paceline.slots.stores.sql import SqlSlotStore
from paceline_payments.feed import FeedFormat
from paceline_payments.feeds.accepting import Feeds
from paceline_payments.feeds.model import Control, Feed, FeedState
from paceline_payments.feeds.receiving import FeedReceiver
from paceline_payments.intake import PaymentIntake
from paceline_payments.model import (
    ITEM_TYPE,
    IntakeResult,
    Payment,
    PaymentEvent,
    PaymentFilter,
    PaymentRecord,
    PaymentStatus,
    StatusChange,
)
from paceline_payments.parsing import COLUMNS
from paceline_payments.stores.feeds import SqlFeedStore
from paceline_payments.stores.moves import PaymentFollower
from paceline_payments.stores.sql import SqlPaymentStore
from tests.contracts.conftest import slot_store_url
from tests.contracts.payments.conftest import KEY
from tests.every_schema import database

HEADER = ",".join(COLUMNS)
REST = "Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z"
PAIN = """<?xml version="1.0" encoding="UTF-8"?>
<Document xmlns="urn:iso:std:iso:20022:tech:xsd:pain.001.001.09"><CstmrCdtTrfInitn>
<GrpHdr><MsgId>MSG-1</MsgId><CreDtTm>2030-02-28T10:00:00</CreDtTm><NbOfTxs>{count}</NbOfTxs>{sum}<InitgPty><Nm>Alice</Nm></InitgPty></GrpHdr>
<PmtInf><PmtInfId>P</PmtInfId><PmtMtd>TRF</PmtMtd>{own}<ReqdExctnDt><Dt>2030-03-01</Dt></ReqdExctnDt>
<Dbtr><Nm>Alice &amp; Co</Nm></Dbtr><DbtrAcct><Id><IBAN>DE89370400440532013000</IBAN></Id></DbtrAcct>
<DbtrAgt><FinInstnId><BICFI>COBADEFF</BICFI></FinInstnId></DbtrAgt>
{transactions}
</PmtInf></CstmrCdtTrfInitn></Document>"""
TRANSACTION = """<CdtTrfTxInf><PmtId><InstrId>{id}</InstrId><EndToEndId>{id}</EndToEndId></PmtId>
<Amt><InstdAmt Ccy="{currency}">{amount}</InstdAmt></Amt><CdtrAgt><FinInstnId><BICFI>NWBKGB2L</BICFI></FinInstnId>
</CdtrAgt><Cdtr><Nm>Bob</Nm></Cdtr><CdtrAcct><Id><IBAN>{iban}</IBAN></Id></CdtrAcct>
<RmtInf><Ustrd>invoice</Ustrd></RmtInf></CdtTrfTxInf>"""


@dataclass
class Bench:
    store: SqlFeedStore
    payments: SqlPaymentStore
    slots: SqlSlotStore
    intake: PaymentIntake
    queue: SqlQueueStore

    @property
    def feeds(self) -> Feeds:
        return Feeds(self.store, self.payments, self.intake, lease=timedelta(0))

    async def receive(self, body: str, kind: FeedFormat = FeedFormat.CSV, control: Control | None = None) -> str:
        return await FeedReceiver(self.store).receive(blocks(body.encode()), kind, control=control or Control())

    async def ids(self, feed_id: str | None = None) -> list[str]:
        page = await self.payments.page(PaymentFilter(feed_id=feed_id), 10_000, None)
        return [record.payment.payment_id for record in page]


@pytest.fixture(params=["sqlite", "postgresql", "sqlite encrypted"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    kind, _, encrypted = request.param.partition(" ")
    encryption = Encryption([KEY]) if encrypted else None
    shared = await database(slot_store_url(kind, request))
    queue = SqlQueueStore(shared, {ITEM_TYPE: PaymentFollower()}, encryption=encryption)
    slots = SqlSlotStore(shared, owns_database=False)
    await queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    scheduler = SlotScheduler(slots)
    await scheduler.configure("default", WindowPolicy(100, "PT4S"))
    payments = SqlPaymentStore(shared, encryption=encryption)
    intake = PaymentIntake(payments, scheduler)
    yield Bench(SqlFeedStore(shared, encryption=encryption), payments, slots, intake, queue)
    await intake.close()
    await queue.close()


async def blocks(body: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for first in range(0, len(body), size):
        yield body[first : first + size]


def lines(*names: str, amount: str = "12.34", currency: str = "EUR") -> str:
    return "\n".join([HEADER, *(f"{name},{amount},{currency},{REST}" for name in names)])


def pain(*names: str, count: int | None = None, total: str | None = None, iban: str = "", own: str = "") -> str:
    bob = "GB29NWBK60161331926819"
    transactions = "".join(
        TRANSACTION.format(id=name, currency="EUR", amount="12.34", iban=iban if iban and name == names[0] else bob)
        for name in names
    )
    ctrl = "" if total is None else f"<CtrlSum>{total}</CtrlSum>"
    count = len(names) if count is None else count
    return PAIN.format(count=count, sum=ctrl, transactions=transactions, own=own)


async def test_a_feed_is_received_whole_and_then_accepted(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b", "b") + "\nbroken\n\n" + f"c,5,JPY,{REST}")
    waiting = await bench.feeds.show(feed_id)
    assert (waiting.state, waiting.records, waiting.rejected, waiting.progress) == (FeedState.ACCEPTING, 5, 1, 0.0)
    assert await bench.ids() == []
    feed = await bench.feeds.accept(feed_id)
    assert (feed.state, feed.accepted, feed.duplicates, feed.rejected) == (FeedState.DONE, 3, 1, 1)
    assert (dict(feed.planned), dict(feed.totals)) == ({"EUR": "37.02", "JPY": "5"}, {"EUR": "24.68", "JPY": "5"})
    assert await bench.ids(feed_id) == ["a", "b", "c"]
    (reject,) = await bench.feeds.rejects(feed_id)
    assert (reject.line, reject.raw) == (5, "broken")
    assert reject.reason.startswith("line: has 1 fields")


@pytest.mark.parametrize(
    ("kind", "body", "ids"),
    [
        (
            FeedFormat.CSV,
            f'{HEADER}\na,1.234,EUR,{REST}\n"b",x,EUR,{REST}\nc\n{"x" * 129},x,EUR,{REST}\nd,1.00,"EUR,{REST}',
            ["a", "b", None, None, None],
        ),
        (FeedFormat.JSONL, '{"paymentId": "a", "amount": 1}\n{"paymentId": 7}\n{\n[]', ["a", None, None, None]),
    ],
)
async def test_a_record_that_is_no_payment_keeps_its_id_if_that_can_be_read(
    bench: Bench, kind: FeedFormat, body: str, ids: list[str | None]
) -> None:
    feed_id = await bench.receive(body, kind)
    assert [reject.payment_id for reject in await bench.feeds.rejects(feed_id)] == ids


@pytest.mark.parametrize(
    ("control", "field"),
    [
        (Control(count=3), "count: is 3, but the feed has 2 records"),
        (Control(control_sum=Decimal("24.69")), "controlSum: is 24.69, but the amounts add up to 24.68"),
    ],
)
async def test_wrong_control_figures_keep_nothing(bench: Bench, control: Control, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        await bench.receive(lines("a", "b"), control=control)
    (feed,) = await bench.feeds.page(10, None)
    assert feed.state is FeedState.REFUSED
    assert await bench.feeds.resume() == 0
    assert await bench.ids() == []
    with pytest.raises(Conflict, match="REFUSED"):
        await bench.feeds.cancel(feed.feed_id)
    good = await bench.receive(lines("a", "b"), control=Control(2, Decimal("24.680")))
    assert (await bench.feeds.accept(good)).accepted == 2


async def test_the_sum_counts_records_that_are_no_payments_too(bench: Bench) -> None:
    body = lines("a") + "\nbad,0.66,EUR,Alice,XX,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z"
    feed_id = await bench.receive(body, control=Control(2, Decimal("13.00")))
    assert (await bench.feeds.accept(feed_id)).rejected == 1


async def test_the_same_bytes_are_the_same_feed(bench: Bench) -> None:
    first = await bench.receive(lines("a", "b"))
    assert await bench.receive(lines("a", "b")) == first, "also before it is accepted"
    await bench.feeds.accept(first)
    assert await bench.receive(lines("a", "b")) == first
    assert await bench.receive(lines("a", "b"), FeedFormat.CSV) == first
    assert len(await bench.feeds.page(10, None)) == 1
    other = await bench.receive(lines("a", "c"))
    feed = await bench.feeds.accept(other)
    assert (feed.accepted, feed.duplicates) == (1, 1)
    assert await bench.ids(first) == ["a", "b"], "a payment belongs to the feed that brought it"


async def test_a_feed_with_rejects_may_be_sent_again(bench: Bench) -> None:
    body = lines("a", "b").replace(f"b,12.34,EUR,{REST}", f"a,99.00,EUR,{REST}")
    first = await bench.receive(body)
    assert (await bench.feeds.accept(first)).rejected == 1
    second = await bench.receive(body)
    assert second != first
    feed = await bench.feeds.accept(second)
    assert (feed.accepted, feed.duplicates, feed.rejected) == (0, 1, 1)


class Crashing:
    """An intake whose process dies after the chunk with some payment is accepted, before that is recorded. Chunks are
    in flight concurrently, so their number does not show which is done."""

    def __init__(self, intake: PaymentIntake, payment_id: str) -> None:
        self._intake = intake
        self._payment_id = payment_id

    async def initiate(self, payments: Sequence[Payment], *, feed_id: str | None = None) -> list[IntakeResult]:
        results = await self._intake.initiate(payments, feed_id=feed_id)
        if self._payment_id in {payment.payment_id for payment in payments}:
            raise StoreUnavailable("killed")
        return results


async def test_another_process_goes_on_where_a_crash_left_a_feed(bench: Bench) -> None:
    feed_id = await bench.receive(lines(*(f"p{number:04}" for number in range(3500))) + f"\np0001,7,EUR,{REST}")
    dying = Feeds(bench.store, bench.payments, Crashing(bench.intake, "p1000"))
    with pytest.raises(StoreUnavailable):
        await dying.accept(feed_id)
    left = await bench.feeds.show(feed_id)
    assert (left.state, left.chunks_done) == (FeedState.ACCEPTING, 1)
    assert await bench.store.claim("somebody", timedelta(hours=1), feed_id) is not None, "it was given back"
    assert await Feeds(bench.store, bench.payments, bench.intake).resume() == 0, "its runner may still live"
    assert await bench.feeds.resume() == 1
    feed = await bench.feeds.show(feed_id)
    assert (feed.state, feed.accepted, feed.duplicates, feed.rejected) == (FeedState.DONE, 3500, 0, 1)
    (reject,) = await bench.feeds.rejects(feed_id)
    assert (reject.line, reject.payment_id) == (3502, "p0001")
    assert await bench.store.chunk(feed_id, 1) is None


async def test_two_processes_do_not_accept_one_feed_twice(bench: Bench) -> None:
    feed_id = await bench.receive(lines(*(f"p{number:04}" for number in range(2500))))
    runners = [Feeds(bench.store, bench.payments, bench.intake) for _ in range(3)]
    await asyncio.gather(*(runner.accept(feed_id) for runner in runners))
    feed = await bench.feeds.show(feed_id)
    assert (feed.state, feed.accepted, feed.duplicates) == (FeedState.DONE, 2500, 0)


async def test_cancelling_a_feed_cancels_what_has_not_begun(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b", "c"))
    await bench.feeds.accept(feed_id)
    await bench.payments.begin(["b"])
    feed, cancelled, refused = await bench.feeds.cancel(feed_id)
    assert (feed.state, cancelled, refused) == (FeedState.CANCELLED, 2, 1)
    assert await bench.payments.count() == {PaymentStatus.CANCELLED: 2, PaymentStatus.SCHEDULED: 1}
    assert await bench.slots.find("payment:a") is None
    assert (await bench.feeds.cancel(feed_id))[1:] == (0, 1), "pressed twice"
    with pytest.raises(NotFound):
        await bench.feeds.cancel("feed-none")


class CancelledMeanwhile:
    """A payment store that another process cancels the feed in, each time a page has been read."""

    def __init__(self, bench: Bench, feed_id: str) -> None:
        self._bench = bench
        self._feed_id = feed_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bench.payments, name)

    async def page(self, *arguments: Any, **options: Any) -> list[PaymentRecord]:
        page = await self._bench.payments.page(*arguments, **options)
        await self._bench.feeds.cancel(self._feed_id)
        return page


async def test_payments_that_another_call_cancelled_meanwhile_are_not_refused(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b", "c"))
    await bench.feeds.accept(feed_id)
    await bench.payments.begin(["b"])
    late = Feeds(bench.store, CancelledMeanwhile(bench, feed_id), bench.intake)
    assert (await late.cancel(feed_id))[1:] == (0, 1), "only b has begun"


async def test_payments_that_are_over_count_as_not_cancelled(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b", "c"))
    await bench.feeds.accept(feed_id)
    await bench.payments.advance([StatusChange("b", PaymentStatus.SCHEDULED, PaymentStatus.ACCEPTED)])
    for cancelled in (2, 0):
        assert (await bench.feeds.cancel(feed_id))[1:] == (cancelled, 1)


async def test_a_feed_cancelled_when_all_was_accepted_keeps_its_figures(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b", "b") + "\nbroken")
    before = await bench.feeds.accept(feed_id)
    assert (before.accepted, before.duplicates, before.rejected) == (2, 1, 1)
    feed, _, _ = await bench.feeds.cancel(feed_id)
    assert (feed.accepted, feed.duplicates, feed.rejected) == (2, 1, 1)
    assert feed.records == feed.accepted + feed.duplicates + feed.rejected
    assert (dict(feed.totals), feed.progress) == (dict(before.totals), 1.0)


async def test_a_feed_cancelled_before_it_was_finished_adds_up_too(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b", "b"))
    async for _ in bench.feeds.progress(feed_id):
        feed, _, _ = await bench.feeds.cancel(feed_id)
    assert (feed.state, feed.accepted, feed.duplicates) == (FeedState.CANCELLED, 2, 1)


async def test_payments_that_were_forgotten_are_no_duplicates_of_a_cancelled_feed(bench: Bench) -> None:
    feed_id = await bench.receive(lines("a", "b"))
    await bench.feeds.accept(feed_id)
    await bench.payments.move(["a"], PaymentEvent.CANCEL, "by hand")
    for store in (bench.queue, bench.payments):
        await store.prune(datetime(2199, 1, 1, tzinfo=UTC))
    assert await bench.ids(feed_id) == ["b"]
    feed, _, _ = await bench.feeds.cancel(feed_id)
    assert (feed.accepted, feed.duplicates, dict(feed.totals)) == (2, 0, {"EUR": "24.68"})


async def test_a_feed_cancelled_half_way_accepts_no_more(bench: Bench) -> None:
    feed_id = await bench.receive(lines(*(f"p{number:04}" for number in range(3000))))
    seen = []
    async for number in bench.feeds.progress(feed_id):
        seen.append(number)
        if number == 1:
            await bench.feeds.cancel(feed_id)
    assert seen == [1]
    feed = await bench.feeds.accept(feed_id)
    assert (feed.state, feed.chunks_done) == (FeedState.CANCELLED, 1)
    cancelled = await bench.payments.count()
    assert cancelled.get(PaymentStatus.SCHEDULED, 0) <= 1000, "at most the chunk that was on its way"


async def test_a_feed_that_breaks_off_leaves_nothing(bench: Bench) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield lines(*(f"p{number:04}" for number in range(1500))).encode()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await FeedReceiver(bench.store).receive(broken(), FeedFormat.CSV)
    (feed,) = await bench.feeds.page(10, None)
    assert (feed.state, feed.reason) == (FeedState.REFUSED, "it broke off")
    assert await bench.store.chunk(feed.feed_id, 1) is None


async def accepted_pain(bench: Bench, document: str) -> Feed:
    return await bench.feeds.accept(await bench.receive(document, FeedFormat.PAIN001))


async def test_a_pain001_document_is_a_feed(bench: Bench) -> None:
    names = [f"e2e-{number:04}" for number in range(1200)]
    feed = await accepted_pain(bench, pain(*names, total="14808.00"))
    assert (feed.state, feed.accepted, feed.name) == (FeedState.DONE, 1200, "MSG-1")
    assert dict(feed.totals) == {"EUR": "14808.00"}
    (payment_id,) = [payment_id for payment_id in await bench.ids() if payment_id.startswith("MSG_1-P-e2e_0007-")]
    record = (await bench.payments.find([payment_id]))[payment_id]
    assert (record.payment.payer.name, record.payment.payee.name) == ("Alice & Co", "Bob")
    assert record.payment.payee.iban == "GB29NWBK60161331926819"
    assert record.payment.execute_at.isoformat() == "2030-03-01T00:00:00+00:00"


async def test_a_bad_transaction_of_a_pain001_document_comes_back_as_a_line_to_correct(bench: Bench) -> None:
    feed = await accepted_pain(bench, pain("a", "b", total="24.68", iban="GB00"))
    assert (feed.accepted, feed.rejected) == (1, 1)
    (reject,) = await bench.feeds.rejects(feed.feed_id)
    assert (reject.line, (reject.payment_id or "").startswith("MSG_1-P-a-")) == (1, True)
    assert reject.reason.startswith("CdtrAcct.Id.IBAN:")
    corrected = reject.raw.replace("GB00", "GB29NWBK60161331926819")
    assert (await bench.feeds.accept(await bench.receive(corrected, FeedFormat.JSONL))).accepted == 1
    record = (await bench.payments.find([reject.payment_id or ""]))[reject.payment_id or ""]
    assert record.payment.whole_instruction["RmtInf"] == {"Ustrd": ["invoice"]}


async def test_a_document_for_a_day_long_ago_is_not_paid_today(bench: Bench) -> None:
    """A date of 2019 was accepted."""
    feed = await accepted_pain(bench, pain("a").replace("2030-03-01", "2019-03-01"))
    (reject,) = await bench.feeds.rejects(feed.feed_id)
    assert (feed.accepted, reject.reason) == (0, "executeAt: is more than 30 days ago")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (pain("a", count=2), "count: is 2, but the feed has 1"),
        (pain("a", total="12.35"), "controlSum: is 12.35"),
        (pain("a", own="<NbOfTxs>2</NbOfTxs>"), "PmtInf.NbOfTxs"),
        (pain("a", own="<CtrlSum>1</CtrlSum>"), "PmtInf.CtrlSum"),
        (pain("a").replace("<NbOfTxs>1</NbOfTxs>", ""), "GrpHdr: has no NbOfTxs"),
        (pain("a")[:-20], "not well-formed"),
        ("", "not well-formed"),
        ("<a/>", "must be a Document"),
        (pain("a").replace("pain.001.001.09", "pain.008.001.08").replace("pain.001", "pain.008"), "must be a Document"),
        (pain("a").replace("<Document", '<!DOCTYPE d [<!ENTITY x "y">]><Document', 1), "document type declaration"),
        (
            pain("a").replace("<Document", '<!DOCTYPE d SYSTEM "file:///etc/passwd"><Document', 1),
            "document type declaration",
        ),
        (pain("a").replace("<PmtMtd>", "<x>" * 50 + "</x>" * 50 + "<PmtMtd>"), "has x, which is not allowed"),
        (pain("a").replace("<Amt>", "<x>" * 50 + "</x>" * 50 + "<Amt>"), "deeper than"),
        (pain("a" * 200_000), "more than 100000 characters"),
        (pain("a").replace("<PmtMtd>", f'<PmtMtd a="{"x" * 3_000_000}">'), "more than 1048576 bytes"),
    ],
)
async def test_a_document_that_is_wrong_or_hostile_keeps_nothing(bench: Bench, document: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        await bench.receive(document, FeedFormat.PAIN001)
    assert await bench.ids() == []
