"""Records of a feed, checked once and kept in a compact form until the feed is complete."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from paceline.durations import from_ms, to_ms
from paceline_payments.feed import FeedFormat, Line, parse
from paceline_payments.feeds.model import FeedReject, Figures
from paceline_payments.instruction_columns import Columns
from paceline_payments.model import Party, Payment
from paceline_payments.serialization import payment_to_json

MAX_RAW = 60_000
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
    """None: as `json_line` writes it."""
    payment: Payment


def stage_lines(lines: Sequence[Line], columns: Columns, kind: FeedFormat, figures: Figures) -> StagedChunk:
    """Checks lines and adds them to the figures."""
    payments, rejected = parse(lines, kind, columns)
    texts = {line.number: line.raw for line in lines} if rejected else {}
    rejects = []
    for number, reason, payment_id in rejected:
        raw = _text(texts[number])
        figures.other += _amount(raw, kind)
        rejects.append(FeedReject(number, reason, payment_id, raw[:MAX_RAW]))
    return stage(payments, rejects, figures)


def stage(
    payments: Sequence[tuple[int, str | None, Payment]], rejects: list[FeedReject], figures: Figures
) -> StagedChunk:
    """A chunk of checked records, added to the figures. Packed by columns: they are faster to read back than rows."""
    figures.records += len(payments) + len(rejects)
    figures.rejected += len(rejects)
    figures.chunks += 1
    if not payments:
        return StagedChunk(zlib.compress(b"[]", 1), rejects)
    lines, raws, contents = zip(*payments, strict=True)
    ids, amounts, currencies, payers, payees, times, configs, instructions = zip(*contents, strict=True)
    for currency in set(currencies):
        own = [int(amount.replace(".", "")) for amount, of in zip(amounts, currencies, strict=True) if of == currency]
        figures.totals.add(currency, sum(own), len(own))
    parties = [column for pairs in (payers, payees) for column in zip(*pairs, strict=True)]
    instants = {at: to_ms(at) for at in set(times)}
    columns = [lines, raws, ids, amounts, currencies, *parties, [instants[at] for at in times], configs, instructions]
    return StagedChunk(zlib.compress(json.dumps(columns).encode(), 1), rejects)


def read_staged(payload: bytes) -> list[StagedPayment]:
    """What `stage` packed."""
    columns: list[list[Any]] = json.loads(zlib.decompress(payload))
    if not columns:
        return []
    lines, raws, ids, amounts, currencies, *parties, times, configs, instructions = columns
    instants = {at: from_ms(at) for at in set(times)}
    known: dict[tuple[str, str, str], Party] = {}
    payers, payees = (
        [known.get(members) or known.setdefault(members, Party(*members)) for members in zip(*three, strict=True)]
        for three in (parties[:3], parties[3:])
    )
    payments = map(
        Payment,
        ids,
        amounts,
        currencies,
        payers,
        payees,
        [instants[at] for at in times],
        configs,
        instructions,
    )
    return list(map(StagedPayment, lines, raws, payments))


def json_line(payment: Payment) -> str:
    """The payment as a line of an NDJSON feed."""
    return json.dumps(payment_to_json(payment), ensure_ascii=False)


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
