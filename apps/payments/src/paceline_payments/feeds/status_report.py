"""The status report of a feed: pain.002, per file and per transaction.

A report begins with the number of transactions per status, so its transactions wait in a temporary file meanwhile.
Memory stays the same for any feed.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from xml.sax.saxutils import escape

from paceline.durations import format_instant
from paceline_payments.feeds.model import Feed, FeedReject, FeedState
from paceline_payments.feeds.statuses import REJECTED, SCHEMA, STATUSES, group_status, reason_code
from paceline_payments.iso20022 import NOT_PROVIDED
from paceline_payments.model import PaymentFilter, PaymentRecord
from paceline_payments.ports import PaymentStore

PAGE = 1000
MAX_ID, MAX_LINE, MAX_LINES = 35, 105, 10
REPORTS = {"pain.001.001.09": "pain.002.001.10", "pain.001.001.11": "pain.002.001.12"}
OLDEST_REPORT = "pain.002.001.03"
"""For pain.001.001.03 and its national forms."""
NEWEST_REPORT = "pain.002.001.12"
"""For feeds that are no documents."""
_UETR = re.compile(r"[a-f0-9]{8}-[a-f0-9]{4}-4[a-f0-9]{3}-[89ab][a-f0-9]{3}-[a-f0-9]{12}")
_NOT_OF_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Rejects(Protocol):
    """Reads the rejected records of a feed."""

    async def rejects(self, feed_id: str, after: int = 0, limit: int = 1000) -> list[FeedReject]: ...


async def status_report(feed: Feed, rejects: Rejects, payments: PaymentStore, now: datetime) -> AsyncIterator[bytes]:
    """The report of a feed as it is now, block by block."""
    version = _version(feed)
    with tempfile.TemporaryDirectory(prefix="paceline-report-") as directory:
        spool = await asyncio.to_thread(_Spool, Path(directory) / "report.db")
        try:
            after: str | None = None
            while page := await payments.page(PaymentFilter(feed_id=feed.feed_id), PAGE, after):
                after = page[-1].payment.payment_id
                await asyncio.to_thread(spool.add, [_of_payment(record, version) for record in page])
            line = 0
            while rejected := await rejects.rejects(feed.feed_id, line, PAGE):
                line = rejected[-1].line
                await asyncio.to_thread(spool.add, [_of_reject(reject, version) for reject in rejected])
            blocks = spool.blocks(lambda counts: _head(feed, version, counts, now))
            while block := await asyncio.to_thread(next, blocks, b""):
                yield block
        finally:
            await asyncio.to_thread(spool.close)


def _version(feed: Feed) -> str:
    name = feed.document.get("MsgNmId")
    return NEWEST_REPORT if name is None else REPORTS.get(name, OLDEST_REPORT)


class _Spool:
    """Transactions by payment information, in a file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=OFF", "synchronous=OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE entry (information TEXT, status TEXT, xml TEXT)")

    def add(self, entries: Sequence[tuple[str, str, str]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO entry VALUES (?, ?, ?)", entries)
        self._connection.execute("COMMIT")

    def blocks(self, head: Callable[[Mapping[str, int]], str]) -> Iterator[bytes]:
        """The document: its head, then the transactions of each payment information."""
        query = self._connection.execute
        yield head(dict(query("SELECT status, COUNT(*) FROM entry GROUP BY status ORDER BY status"))).encode()
        for (information,) in query("SELECT DISTINCT information FROM entry ORDER BY information").fetchall():
            yield f"<OrgnlPmtInfAndSts><OrgnlPmtInfId>{_text(information, MAX_ID)}</OrgnlPmtInfId>".encode()
            rows = query("SELECT xml FROM entry WHERE information = ? ORDER BY rowid", (information,))
            while some := rows.fetchmany(PAGE):
                yield "".join(xml for (xml,) in some).encode()
            yield b"</OrgnlPmtInfAndSts>"
        yield b"</CstmrPmtStsRpt></Document>\n"

    def close(self) -> None:
        self._connection.close()


def _head(feed: Feed, version: str, counts: Mapping[str, int], now: datetime) -> str:
    document, moment = feed.document, format_instant(now)
    status = group_status(list(counts), is_whole=feed.state not in (FeedState.HELD, FeedState.ACCEPTING))
    reason = ""
    if feed.state is FeedState.REFUSED:
        reason = _reason(SCHEMA, feed.reason or "refused")
    elif feed.duplicates:
        reason = _reason("AM05", f"{feed.duplicates} transactions were accepted before, with another file")
    original = [
        ("OrgnlMsgId", document.get("MsgId") or feed.feed_id),
        ("OrgnlMsgNmId", document.get("MsgNmId") or feed.format),
        ("OrgnlCreDtTm", document.get("CreDtTm")),
        ("OrgnlNbOfTxs", document.get("NbOfTxs") or str(feed.records)),
        ("OrgnlCtrlSum", document.get("CtrlSum")),
        ("GrpSts", status),
    ]
    per_status = "".join(
        f"<NbOfTxsPerSts><DtldNbOfTxs>{number}</DtldNbOfTxs><DtldSts>{name}</DtldSts></NbOfTxsPerSts>"
        for name, number in counts.items()
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Document xmlns="urn:iso:std:iso:20022:tech:xsd:{version}">'
        f"<CstmrPmtStsRpt><GrpHdr><MsgId>{feed.feed_id[:24]}-{int(now.timestamp())}</MsgId>"
        f"<CreDtTm>{moment}</CreDtTm></GrpHdr><OrgnlGrpInfAndSts>{_elements(original)}{reason}{per_status}"
        "</OrgnlGrpInfAndSts>"
    )


def _of_payment(record: PaymentRecord, version: str) -> tuple[str, str, str]:
    payment = record.payment
    status = STATUSES[record.status]
    instruction = {} if payment.instruction is None else json.loads(payment.instruction)
    reason = record.reason or ""
    code = _reason(reason_code(reason, record.status), reason) if reason and status != "ACSC" else ""
    return _entry(payment.payment_id, instruction, version, status, code, record.reference)


def _of_reject(reject: FeedReject, version: str) -> tuple[str, str, str]:
    try:
        raw = json.loads(reject.raw)
    except ValueError:
        raw = {}
    instruction = raw.get("instruction") if isinstance(raw, dict) else None
    reason = _reason(reason_code(reject.reason), reject.reason)
    payment_id = reject.payment_id or f"line {reject.line}"
    return _entry(payment_id, instruction if isinstance(instruction, dict) else {}, version, REJECTED, reason, None)


def _entry(
    payment_id: str, instruction: Mapping[str, Any], version: str, status: str, reason: str, reference: str | None
) -> tuple[str, str, str]:
    ids = instruction.get("PmtId")
    ids = ids if isinstance(ids, dict) else {}
    uetr = ids.get("UETR")
    is_known = version != OLDEST_REPORT and isinstance(uetr, str) and _UETR.fullmatch(uetr)
    is_document = "PmtInfId" in instruction
    elements = _elements(
        [
            ("OrgnlInstrId", ids.get("InstrId") or (None if is_document else payment_id)),
            ("OrgnlEndToEndId", ids.get("EndToEndId") or NOT_PROVIDED),
            ("OrgnlUETR", uetr if is_known else None),
            ("TxSts", status),
        ]
    )
    bank = _elements([("AcctSvcrRef", reference)])
    information = instruction.get("PmtInfId")
    name = information if isinstance(information, str) else NOT_PROVIDED
    return name, status, f"<TxInfAndSts>{elements}{reason}{bank}</TxInfAndSts>"


def _reason(code: str, words: str) -> str:
    clean = _NOT_OF_XML.sub("?", words)
    parts = [clean[first : first + MAX_LINE] for first in range(0, len(clean), MAX_LINE)][:MAX_LINES]
    lines = "".join(f"<AddtlInf>{escape(part)}</AddtlInf>" for part in parts)
    return f"<StsRsnInf><Rsn><Cd>{code}</Cd></Rsn>{lines}</StsRsnInf>"


def _elements(pairs: Sequence[tuple[str, str | None]]) -> str:
    return "".join(f"<{name}>{_text(text, MAX_ID)}</{name}>" for name, text in pairs if text)


def _text(text: object, length: int) -> str:
    return escape(_NOT_OF_XML.sub("?", str(text))[:length])
