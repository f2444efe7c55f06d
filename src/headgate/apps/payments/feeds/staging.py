"""Records of a feed, checked once and kept in a compact form until the feed is whole."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from io import StringIO
from typing import Any, NamedTuple

from headgate.apps.payments.feed import FeedFormat, Line, parse
from headgate.apps.payments.feeds.model import FeedReject, Figures
from headgate.apps.payments.model import Party, Payment
from headgate.durations import format_instant, from_ms, to_ms

LONGEST_RAW = 4000
"""Characters of a rejected record that are kept."""


class StagedChunk(NamedTuple):
    """Records that were read together."""

    payload: bytes
    """Those that are payments."""
    rejects: list[FeedReject]


class StagedPayment(NamedTuple):
    """A payment that waits to be accepted."""

    line: int
    raw: str | None
    """None: as `csv_line` writes it."""
    payment: Payment


def stage_lines(lines: Sequence[Line], kind: FeedFormat, figures: Figures) -> StagedChunk:
    """Checks lines and adds them to the figures."""
    payments, rejected = parse(lines, kind)
    texts = {line.number: line.raw for line in lines}
    rejects = []
    for number, reason, payment_id in rejected:
        raw = _text(texts[number])
        figures.other += _amount(raw, kind)
        rejects.append(FeedReject(number, reason, payment_id, raw[:LONGEST_RAW]))
    staged = [StagedPayment(number, _text(texts[number]), payment) for number, payment in payments]
    return stage(staged, rejects, figures)


def stage(payments: Sequence[StagedPayment], rejects: list[FeedReject], figures: Figures) -> StagedChunk:
    """A chunk of checked records, added to the figures."""
    rows = []
    totals = figures.totals
    for line, raw, payment in payments:
        payment_id, amount, currency, payer, payee, execute_at, config = payment
        totals.add(currency, int(amount.replace(".", "")))
        rows.append((line, raw, payment_id, amount, currency, *payer, *payee, to_ms(execute_at), config))
    figures.records += len(payments) + len(rejects)
    figures.rejected += len(rejects)
    figures.chunks += 1
    return StagedChunk(zlib.compress(json.dumps(rows).encode(), 1), rejects)


def read_staged(payload: bytes) -> list[StagedPayment]:
    """What `stage` packed."""
    rows: list[list[Any]] = json.loads(zlib.decompress(payload))
    return [
        StagedPayment(
            line,
            raw,
            Payment(
                payment_id, amount, currency, Party(payer, payer_iban), Party(payee, payee_iban), from_ms(at), config
            ),
        )
        for line, raw, payment_id, amount, currency, payer, payer_iban, payee, payee_iban, at, config in rows
    ]


def csv_line(payment: Payment) -> str:
    """The payment as a line of a CSV feed."""
    fields = (
        payment.payment_id,
        payment.amount,
        payment.currency,
        *payment.payer,
        *payment.payee,
        format_instant(payment.execute_at),
    )
    return csv_fields(fields)


def csv_fields(fields: Sequence[str]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode("utf-8", "replace").lstrip("\ufeff").strip("\r\n")


def _amount(raw: str, kind: FeedFormat) -> Decimal:
    """The amount of a record that is no payment; 0 if there is none to read."""
    try:
        text = json.loads(raw)["amount"] if kind is FeedFormat.JSONL else next(csv.reader([raw]))[1]
        amount = Decimal(text) if isinstance(text, str) and len(text) <= 30 else Decimal(0)
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, RecursionError, csv.Error, InvalidOperation):
        return Decimal(0)
    return amount if amount.is_finite() else Decimal(0)
