"""Bulk feeds: CSV or JSON lines, read in constant memory, one transaction per chunk.

A record is always one line: a malformed line is rejected with its number and reason, and cannot swallow the next one.
Lines are counted from 1 as an editor does; a CSV feed's first line names its columns: those of every feed, and any of
`instruction_columns`.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from paceline.errors import InvalidInput, PacelineError, StoreError
from paceline_payments.instruction_columns import FURTHER_COLUMNS, Columns
from paceline_payments.model import AcceptedPayment, IntakeResult, Payment, PaymentExists
from paceline_payments.parsing import COLUMNS, checked_payment_id, payment_of_fields, payment_of_json
from paceline_payments.strict_json import RepeatedMember, strict_json

CHUNK = 1000
LONGEST_LINE = 64 * 1024
SMALL_BLOCK = 4096
IN_FLIGHT = 2
"""Chunks in flight: while one is being written, the next is being booked and a third is being parsed."""


class FeedFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PAIN001 = "pain001"
    """ISO 20022 customer credit transfers, XML. Only as a feed of its own: `paceline_payments.feeds`."""


class Line(NamedTuple):
    """A line of a feed, not parsed yet."""

    number: int
    raw: bytes | None
    """None if it was too long to be kept."""
    end: int
    """How many bytes of the feed end with this line."""


class LineChunk(NamedTuple):
    """Lines of a feed that are read together."""

    lines: list[Line]
    columns: Columns
    """Those of a CSV feed."""


class Rejection(NamedTuple):
    """A line that is no payment, or one that can't be accepted."""

    line: int
    reason: str
    payment_id: str | None = None


class Progress(NamedTuple):
    """A chunk that is done, and everything before it too."""

    lines: int
    """The number of the last line."""
    bytes: int
    """Where the next line begins."""
    accepted: int
    duplicates: int
    rejected: Sequence[Rejection]


@dataclass(slots=True)
class Tally:
    """A feed's counts."""

    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0

    def add(self, progress: Progress) -> None:
        self.accepted += progress.accepted
        self.duplicates += progress.duplicates
        self.rejected += len(progress.rejected)


Initiate = Callable[[Sequence[Payment]], Awaitable[list[IntakeResult]]]


@dataclass(slots=True)
class LineCutter:
    """Splits blocks of bytes into lines across block boundaries; the length of a line is bounded."""

    number: int = 0
    position: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, block: bytes) -> list[Line]:
        """The lines that end in this block."""
        lines: list[Line] = []
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            lines.append(self._line(block[start : end + 1]))
            start = end + 1
        rest = block[start:]
        if self._skipping:
            self.position += len(rest)
        else:
            self._rest += rest
            if len(self._rest) > LONGEST_LINE:
                self.position += len(self._rest)
                self._rest.clear()
                self._skipping = True
        return lines

    def finish(self) -> list[Line]:
        """The last line, if it has no end of its own."""
        return [self._line(b"")] if self._rest or self._skipping else []

    def _line(self, end: bytes) -> Line:
        raw: bytes | None
        self.position += len(self._rest) + len(end)
        if self._skipping:
            raw = None
        elif self._rest:
            raw = bytes(self._rest) + end
            self._rest.clear()
        else:
            raw = end
        self._skipping = False
        self.number += 1
        return Line(self.number, raw if raw is None or len(raw) <= LONGEST_LINE else None, self.position)


class ParsedLine(NamedTuple):
    """A line that is a payment."""

    number: int
    text: str
    payment: Payment


def parse(
    lines: Iterable[Line], kind: FeedFormat, columns: Columns = COLUMNS
) -> tuple[list[ParsedLine], list[Rejection]]:
    """The payments of these lines, and the lines that are none. Empty lines are neither."""
    payments: list[ParsedLine] = []
    rejected: list[Rejection] = []
    is_csv = kind is FeedFormat.CSV
    for number, raw, _ in lines:
        try:
            if raw is None:
                raise InvalidInput("line", f"is longer than {LONGEST_LINE} bytes")
            # A byte order mark is no part of the first line.
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
            if text and not text.isspace() and not (number == 1 and is_csv):
                payment = (
                    payment_of_fields(_csv_fields(text), columns) if is_csv else payment_of_json(_json_value(text))
                )
                payments.append(ParsedLine(number, text, payment))
        except UnicodeDecodeError:
            rejected.append(Rejection(number, "line: is not UTF-8"))
        except InvalidInput as error:
            rejected.append(Rejection(number, str(error), None if raw is None else _readable_id(text, kind, columns)))
    return payments, rejected


def columns_of(line: Line) -> Columns:
    """The columns that a CSV feed's first line names.

    Raises:
        InvalidInput: They do not begin with `COLUMNS`, or others than `FURTHER_COLUMNS` follow, or one of them twice.
    """
    text = (line.raw or b"").decode("utf-8-sig", "replace").strip()
    names = tuple(name.strip().strip('"') for name in text.split(","))
    further = names[len(COLUMNS) :]
    if names[: len(COLUMNS)] != COLUMNS:
        raise InvalidInput("line 1", f"must name the columns: {','.join(COLUMNS)}")
    for name in further:
        if name not in FURTHER_COLUMNS or further.count(name) > 1:
            problem = (
                "twice" if name in FURTHER_COLUMNS else f"which is unknown; known are {', '.join(FURTHER_COLUMNS)}"
            )
            raise InvalidInput("line 1", f"has the column {name[:40]!r}, {problem}")
    return names


async def initiate_feed(
    blocks: AsyncIterator[bytes],
    kind: FeedFormat,
    initiate: Initiate,
    *,
    start: tuple[int, int] = (0, 0),
    chunk: int = CHUNK,
    in_flight: int = IN_FLIGHT,
) -> AsyncIterator[Progress]:
    """Passes a feed to `initiate`, chunk by chunk, and yields the progress, both in the feed's order.

    `start` is (lines, bytes) of an earlier `Progress`: the blocks continue from there. A store error ends the feed;
    progress that was yielded before is durable, and the rest may be sent again.
    """
    running: list[asyncio.Task[Progress]] = []
    turn = asyncio.Event()
    turn.set()
    try:
        async for lines, columns in line_chunks(blocks, kind, start, chunk):
            following = asyncio.Event()
            running.append(asyncio.create_task(_initiate_chunk(lines, columns, kind, initiate, turn, following)))
            turn = following
            while len(running) >= in_flight:
                progress = await running[0]
                del running[0]
                yield progress
        while running:
            progress = await running[0]
            del running[0]
            yield progress
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def line_chunks(
    blocks: AsyncIterator[bytes], kind: FeedFormat, start: tuple[int, int], chunk: int
) -> AsyncIterator[LineChunk]:
    """The lines of a feed, `chunk` at a time; a CSV feed's header is checked, unless it lies before `start`."""
    cutter, columns = LineCutter(*start), COLUMNS
    waiting: list[Line] = []
    unchecked = kind is FeedFormat.CSV and start == (0, 0)
    async for block in blocks:
        # A large block may be nothing but line ends: splitting it here would block the event loop.
        waiting += cutter.feed(block) if len(block) <= SMALL_BLOCK else await asyncio.to_thread(cutter.feed, block)
        if unchecked and waiting:
            columns = columns_of(waiting[0])
            unchecked = False
        whole = len(waiting) - len(waiting) % chunk
        for first in range(0, whole, chunk):
            yield LineChunk(waiting[first : first + chunk], columns)
        del waiting[:whole]
    waiting += cutter.finish()
    if unchecked:
        columns = columns_of(waiting[0] if waiting else Line(1, b"", 0))
    if waiting:
        yield LineChunk(waiting, columns)


async def _initiate_chunk(
    lines: list[Line],
    columns: Columns,
    kind: FeedFormat,
    initiate: Initiate,
    turn: asyncio.Event,
    following: asyncio.Event,
) -> Progress:
    try:
        # On a thread, so as not to block the event loop. Threads end in any order, while slots are booked in the
        # feed's.
        payments, rejected = await asyncio.to_thread(parse, lines, kind, columns)
        await turn.wait()
    finally:
        following.set()
    accepted = duplicates = 0
    results = await initiate([parsed.payment for parsed in payments]) if payments else []
    for (number, _, payment), result in zip(payments, results, strict=True):
        if isinstance(result, AcceptedPayment):
            duplicates += result.existing
            accepted += not result.existing
        else:
            rejected.append(Rejection(number, reject_reason(result, kind), payment.payment_id))
    rejected.sort()
    return Progress(lines[-1].number, lines[-1].end, accepted, duplicates, rejected)


def reject_reason(error: PacelineError, kind: FeedFormat) -> str:
    """Why a payment can't be accepted, in the words of its feed. An error of the store is raised."""
    if isinstance(error, StoreError) and not isinstance(error, PaymentExists):
        # Not the line's fault: the feed must stop here and be retried, not continue without it.
        raise error
    if isinstance(error, InvalidInput) and kind is FeedFormat.CSV:
        role, _, member = error.field.partition(".")
        return f"{role}{member.capitalize()}: {error.problem}" if member else str(error)
    return str(error)


def _readable_id(text: str, kind: FeedFormat, columns: Columns) -> str | None:
    """The id of a record that is no payment; None if there is none to read, or if it is no id."""
    try:
        if kind is FeedFormat.CSV:
            fields = _csv_fields(text)
            return checked_payment_id(fields[0]) if len(fields) == len(columns) else None
        value = _json_value(text)
        return checked_payment_id(value.get("paymentId")) if isinstance(value, dict) else None
    except InvalidInput:
        return None


def _csv_fields(text: str) -> list[str]:
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise InvalidInput("line", f"is not CSV: {error}") from None


def _json_value(text: str) -> object:
    try:
        return strict_json(text)
    except RepeatedMember as error:
        raise InvalidInput(error.name, "occurs twice") from None
    except (ValueError, RecursionError):
        raise InvalidInput("line", "is not valid JSON") from None
