"""Feeds: lines are cut anywhere, bad ones are reported, none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput, StoreUnavailable
from paceline_payments.feed import (
    LONGEST_LINE,
    FeedFormat,
    Line,
    LineCutter,
    Progress,
    initiate_feed,
    parse,
)
from paceline_payments.model import AcceptedPayment, IntakeResult, Payment, PaymentExists, PaymentStatus
from paceline_payments.parsing import COLUMNS

HEADER = ",".join(COLUMNS).encode() + b"\n"
GOOD = "12.30,EUR,Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2027-03-01T16:00:00Z"
AT = datetime(2027, 3, 1, 16, 0, tzinfo=UTC)


async def blocks(feed: bytes, size: int = 64) -> AsyncIterator[bytes]:
    for first in range(0, len(feed), size):
        yield feed[first : first + size]


async def accept(payments: Sequence[Payment]) -> list[IntakeResult]:
    return [AcceptedPayment(payment.payment_id, PaymentStatus.SCHEDULED, AT) for payment in payments]


async def run(feed: bytes, kind: FeedFormat = FeedFormat.CSV, **options: object) -> list[Progress]:
    return [chunk async for chunk in initiate_feed(blocks(feed), kind, accept, **options)]  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")), max_size=20), st.integers(1, 50))
def test_lines_are_the_same_however_the_bytes_arrive(raws: list[bytes], size: int) -> None:
    feed = b"\n".join(raws)
    cutter = LineCutter()
    lines = [line for first in range(0, len(feed), size) for line in cutter.feed(feed[first : first + size])]
    lines += cutter.finish()
    assert b"".join(line.raw or b"" for line in lines) == feed
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    ends = [line.end for line in lines]
    assert all(feed[end - 1 : end] == b"\n" for end in ends[:-1])
    assert not ends or ends[-1] == len(feed)


def test_a_line_without_end_is_not_kept_in_memory() -> None:
    cutter = LineCutter()
    lines = [line for _ in range(100) for line in cutter.feed(b"x" * 10_000)]
    assert lines == []
    assert len(cutter._rest) <= LONGEST_LINE
    (long, short) = cutter.feed(b"x\nshort\n")
    assert (long.number, long.raw, long.end) == (1, None, 1_000_002)
    assert (short.number, short.raw, short.end) == (2, b"short\n", 1_000_008)


async def test_every_line_is_accepted_or_reported_with_its_number() -> None:
    lines = [
        f"p1,{GOOD}",
        "nonsense",
        "",
        f"p2,{GOOD}".replace("12.30", "12.345"),
        f'"p3",{GOOD}'.replace("Alice", '"Alice, Ltd"'),
        f"p4,{GOOD}".replace("Alice", '"Alice'),
        f"p5,{GOOD}".replace("GB29", "GB00"),
        f"p6,{GOOD}\r",
    ]
    feed = HEADER + "\n".join(lines).encode() + b"\n\xff\xfe\n" + b"x" * 70_000 + b"\n" + f"p7,{GOOD}".encode()
    progress = await run(feed, chunk=3)
    rejected = [reject for chunk in progress for reject in chunk.rejected]
    assert sum(chunk.accepted for chunk in progress) == 4
    assert [reject.line for reject in rejected] == [3, 5, 7, 8, 10, 11]
    reasons = " / ".join(reject.reason for reject in rejected)
    for word in ("fields instead of 8", "amount:", "not CSV", "payeeIban:", "not UTF-8", "longer than"):
        assert word in reasons
    assert (progress[-1].lines, progress[-1].bytes) == (12, len(feed))


async def test_a_large_block_is_cut_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may be nothing but line ends; other requests are served while it is cut."""
    cut_on: list[threading.Thread] = []

    def recorded(self: LineCutter, block: bytes) -> list[Line]:
        cut_on.append(threading.current_thread())
        return cut(self, block)

    cut = LineCutter.feed
    monkeypatch.setattr(LineCutter, "feed", recorded)
    feed = HEADER + b"\n" * 100_000
    async for progress in initiate_feed(blocks(feed, 64 * 1024), FeedFormat.CSV, accept):
        last = progress
    assert (last.lines, last.rejected) == (100_001, [])
    assert len(cut_on) == 2
    assert threading.main_thread() not in cut_on


JSON_LINE = (
    '{"paymentId":"p","amount":"1","currency":"EUR","payer":{"name":"A","iban":"DE89370400440532013000"},'
    f'"payee":{{"name":"B","iban":"GB29NWBK60161331926819"}},"executeAt":"{AT.isoformat()}"}}'
)


async def test_a_byte_order_mark_loses_no_line() -> None:
    (progress,) = await run(b"\xef\xbb\xbf" + JSON_LINE.encode(), FeedFormat.JSONL)
    assert (progress.accepted, progress.rejected) == (1, [])


async def test_nobody_pays_himself() -> None:
    own = JSON_LINE.replace("GB29NWBK60161331926819", "DE89 3704 0044 0532 0130 00")
    (progress,) = await run(own.encode(), FeedFormat.JSONL)
    (rejected,) = progress.rejected
    assert rejected.reason.startswith("payee.iban: is the payer's own account")


async def test_json_lines() -> None:
    good = JSON_LINE
    (progress,) = await run(f"{good}\n[1]\n{{\n{'[' * 30_000}\n".encode(), FeedFormat.JSONL)
    assert progress.accepted == 1
    assert [reject.line for reject in progress.rejected] == [2, 3, 4]


async def test_an_amount_that_occurs_twice_is_none() -> None:
    (progress,) = await run(JSON_LINE.replace('"amount"', '"amount": "9999.00", "amount"').encode(), FeedFormat.JSONL)
    assert [reject.reason for reject in progress.rejected] == ["amount: occurs twice"]


@pytest.mark.parametrize("feed", [b"", b"p1," + GOOD.encode(), b"paymentId,amount\n", b"\xff\n"])
async def test_a_feed_without_its_columns_is_refused_whole(feed: bytes) -> None:
    with pytest.raises(InvalidInput, match="must name the columns"):
        await run(feed)


async def test_a_byte_order_mark_and_quotes_in_the_header_are_forgiven() -> None:
    header = ",".join(f'"{name}"' for name in COLUMNS)
    (progress,) = await run(f"\ufeff{header}\r\np1,{GOOD}".encode())
    assert progress.accepted == 1


async def test_a_feed_goes_on_where_it_was_left() -> None:
    feed = HEADER + b"".join(f"p{number},{GOOD}\n".encode() for number in range(10)) + b"bad\n"
    first = (await run(feed, chunk=4))[0]
    seen: list[str] = []

    async def note(payments: Sequence[Payment]) -> list[IntakeResult]:
        seen.extend(payment.payment_id for payment in payments)
        return await accept(payments)

    rest = initiate_feed(blocks(feed[first.bytes :]), FeedFormat.CSV, note, start=(first.lines, first.bytes), chunk=4)
    progress = [chunk async for chunk in rest]
    assert seen == [f"p{number}" for number in range(3, 10)]
    assert [reject.line for chunk in progress for reject in chunk.rejected] == [12]
    assert progress[-1].bytes == len(feed)


async def test_chunks_are_initiated_in_the_order_of_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the reading of each takes, on its own thread."""
    second_is_read = asyncio.Event()

    async def first_takes_longest(read: Any, lines: Any, *rest: Any) -> Any:
        if lines[0].number == 1:
            await second_is_read.wait()
        result = read(lines, *rest)
        second_is_read.set()
        return result

    monkeypatch.setattr(asyncio, "to_thread", first_takes_longest)
    seen: list[str] = []

    async def note(payments: Sequence[Payment]) -> list[IntakeResult]:
        seen.extend(payment.payment_id for payment in payments)
        return await accept(payments)

    feed = HEADER + b"".join(f"p{number},{GOOD}\n".encode() for number in range(10))
    assert [chunk.lines async for chunk in initiate_feed(blocks(feed), FeedFormat.CSV, note, chunk=4)] == [4, 8, 11]
    assert seen == [f"p{number}" for number in range(10)]


async def test_results_are_counted_and_named_as_the_feed_names_them() -> None:
    async def mixed(payments: Sequence[Payment]) -> list[IntakeResult]:
        return [
            AcceptedPayment("p0", PaymentStatus.SCHEDULED, AT),
            AcceptedPayment("p1", PaymentStatus.PROCESSING, AT, existing=True),
            PaymentExists("p2"),
            InvalidInput("payee.name", "is blocked"),
        ]

    feed = HEADER + b"".join(f"p{number},{GOOD}\n".encode() for number in range(4))
    (progress,) = [chunk async for chunk in initiate_feed(blocks(feed), FeedFormat.CSV, mixed)]
    assert (progress.accepted, progress.duplicates) == (1, 1)
    assert [(reject.line, reject.payment_id) for reject in progress.rejected] == [(4, "p2"), (5, "p3")]
    assert progress.rejected[1].reason == "payeeName: is blocked"


async def test_trouble_with_the_store_ends_the_feed_instead_of_losing_lines() -> None:
    calls = 0

    async def broken(payments: Sequence[Payment]) -> list[IntakeResult]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StoreUnavailable("away")
        return await accept(payments)

    feed = HEADER + b"".join(f"p{number},{GOOD}\n".encode() for number in range(20))
    done: list[Progress] = []

    async def follow() -> None:
        async for chunk in initiate_feed(blocks(feed), FeedFormat.CSV, broken, chunk=3):
            done.append(chunk)

    with pytest.raises(StoreUnavailable):
        await follow()
    assert [chunk.lines for chunk in done] == [3, 6]


def test_parsing_is_pure() -> None:
    lines = LineCutter().feed(HEADER + f"p1,{GOOD}\n".encode())
    assert parse(lines, FeedFormat.CSV) == parse(lines, FeedFormat.CSV)
