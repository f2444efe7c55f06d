"""Payments of documents, as our reader and as lxml read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from lxml import etree

from paceline_payments.feeds.model import FeedReject, Figures, check_control
from paceline_payments.feeds.pain001 import Pain001Parser
from paceline_payments.feeds.staging import StagedPayment

NOT_CARRIED = {"NbOfTxs", "CtrlSum", "SplmtryData", "PmtInf", "CdtTrfTxInf"}


def read(raw: str | bytes) -> tuple[list[StagedPayment], list[FeedReject]]:
    """The payments and rejects of a document, whose control figures are right."""
    parser = Pain001Parser()
    block = raw.encode() if isinstance(raw, str) else raw
    for first in range(0, len(block), 1000):
        parser.feed(block[first : first + 1000])
    parser.finish()
    payments, rejects = parser.take()
    figures = Figures(records=len(payments) + len(rejects))
    parser.add_to(figures)
    for staged in payments:
        figures.totals.add(staged.payment.currency, int(staged.payment.amount.replace(".", "")))
    check_control(figures, parser.control)
    return payments, rejects


def check_carried(root: etree._Element, payments: list[StagedPayment]) -> None:
    """Each payment says what lxml reads of its transaction, and nothing else."""
    for staged in payments:
        check_said(root, staged.line, staged.payment.whole_instruction)


def check_said(root: etree._Element, number: int, instruction: dict[str, Any]) -> None:
    """An instruction says what lxml reads of the transaction of this number, and nothing else."""
    space = {"p": etree.QName(root).namespace or ""}
    transaction = root.findall(".//p:CdtTrfTxInf", space)[number - 1]
    header, information = root.find(".//p:GrpHdr", space), transaction.getparent()
    assert header is not None
    assert information is not None
    said = Counter(pair for node in (header, information, transaction) for pair in _of_lxml(node) if pair[1])
    carried = Counter(pair for pair in _of_instruction(instruction) if pair[1])
    assert set(carried) == set(said)
    # An element may be said equally for the information and the transaction; it is carried once.
    assert all(count >= carried[pair] for pair, count in said.items())


def _of_lxml(node: etree._Element, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text below an element, with its path."""
    for child in node.iterchildren(tag=etree.Element):
        name = etree.QName(child).localname
        inner, text = (*path, name), (child.text or "").strip()
        if name in NOT_CARRIED:
            continue
        if len(child):
            yield from _of_lxml(child, inner)
        elif child.get("Ccy") is not None:
            decimals = {"JPY": 0, "BHD": 3}.get(child.get("Ccy") or "", 2)
            yield (*inner, "amt"), f"{float(text):.{decimals}f}" if name == "InstdAmt" else text
            yield (*inner, "Ccy"), child.get("Ccy") or ""
        else:
            yield inner, text.replace(" ", "") if name == "IBAN" else text


def _of_instruction(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _of_instruction(member, (*path, name))
    elif isinstance(value, list):
        for member in value:
            yield from _of_instruction(member, path)
    else:
        yield path, value.strip()
