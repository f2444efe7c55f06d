"""An NDJSON stream of events, booked while it arrives and answered in order, in constant memory.

Three tasks run concurrently: lines are read, lines are booked, answers are sent. Lines that arrive while a transaction
is in flight go into the next one. Answers are buffered in a temporary file, so that they neither use memory nor block
reading: most clients send their whole body before they read the first answer, which would deadlock otherwise.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from itertools import chain
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from paceline.errors import PacelineError
from paceline.server.http import problem
from paceline.server.http.body import NDJSON, parsed_object
from paceline.server.http.problem import Problem
from paceline.server.shapes import slots as shapes
from paceline.slots import AssignedSlot, SlotRequest, SlotScheduler
from paceline.slots.booking.packing import Booking
from paceline.slots.config_names import ConfigNames, booking_names, name_tuple
from paceline.slots.model import BookingGroup

LONGEST_LINE = 64 * 1024
IN_MEMORY = 1024 * 1024
"""The bytes of answers that are kept in memory before they go to disk."""
PIECE = 64 * 1024
MAX_BAD_LINES = 1000
"""The maximum of invalid lines. At the next one the stream ends: it is another kind of file, or an attack."""
LINES_PER_TURN = 100
"""Lines that are parsed, or answered, before the event loop runs other requests: about a millisecond's work."""


class Line(NamedTuple):
    """One line: its request, or its error."""

    number: int
    config_names: ConfigNames
    request: SlotRequest | Problem
    event_id: str | None
    show_windows: bool = False


async def book_stream(slots: SlotScheduler, names: ConfigNames, receive: Receive, send: Send, batch: int) -> None:
    """Answers each line of the body with a line: a slot, or an error with the line's number."""
    answers = Answers()
    booking = asyncio.create_task(_book(slots, names, receive, answers, batch))
    try:
        headers = [(b"content-type", NDJSON.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for piece in answers.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await booking
        await send({"type": "http.response.body", "body": b""})
    finally:
        if not booking.done():
            booking.cancel()
            await asyncio.wait([booking])
        answers.close()


class Answers:
    """A buffer of bytes for the client: written at one end and sent from the other, independently."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed by close()
        self._sent = self._written = 0
        self._news = asyncio.Event()
        self._finished = False

    def append(self, data: bytes) -> None:
        """Adds bytes to send."""
        self._file.seek(self._written)
        self._file.write(data)
        self._written += len(data)
        self._news.set()

    def finish(self) -> None:
        """Marks the end."""
        self._finished = True
        self._news.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The added bytes, in order, until the end."""
        while True:
            while self._sent < self._written:
                self._file.seek(self._sent)
                piece = self._file.read(PIECE)
                self._sent += len(piece)
                if self._sent == self._written:
                    # With a client that keeps up, the file stays small.
                    self._file.seek(0)
                    self._file.truncate()
                    self._sent = self._written = 0
                yield piece
            if self._finished:
                return
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        self._file.close()


async def _book(slots: SlotScheduler, names: ConfigNames, receive: Receive, answers: Answers, batch: int) -> None:
    lines: asyncio.Queue[Line | None] = asyncio.Queue(2 * batch)
    reading = asyncio.create_task(_read(receive, names, lines))
    try:
        while waiting := await _arrived(lines, batch):
            outcomes = await _booked(slots, waiting)
            for first in range(0, len(waiting), LINES_PER_TURN):
                some = waiting[first : first + LINES_PER_TURN]
                answers.append(b"".join(_answer(line, outcomes[line.number]) for line in some))
                await asyncio.sleep(0)
        await reading
    finally:
        reading.cancel()
        answers.finish()


async def _read(receive: Receive, names: ConfigNames, lines: asyncio.Queue[Line | None]) -> None:
    """Puts each line of the body into the queue, and None after the last."""
    number = bad = 0
    try:
        async for raw in _split(receive):
            number += 1
            if number % LINES_PER_TURN == 0:
                # Neither `put` into a queue with room nor reading a body that has arrived yields to the loop.
                await asyncio.sleep(0)
            if raw is not None and not raw.strip():
                continue
            line = _line(number, raw, names)
            bad += isinstance(line.request, Problem)
            if bad > MAX_BAD_LINES:
                await lines.put(line._replace(request=_too_many_bad_lines()))
                break
            await lines.put(line)
    except Exception:
        await lines.put(None)
        raise
    # Not when cancelled: the queue has no reader then, and `put` would wait for ever.
    await lines.put(None)


async def _split(receive: Receive) -> AsyncIterator[bytes | None]:
    """The body's lines; None for one that is too long."""
    rest, skipping, more = b"", False, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        *complete, rest = (rest + message.get("body", b"")).split(b"\n")
        for raw in complete:
            if not skipping:
                yield raw if len(raw) <= LONGEST_LINE else None
            skipping = False
        if skipping:
            rest = b""
        elif len(rest) > LONGEST_LINE:
            yield None
            rest, skipping = b"", True
    if rest:
        yield rest


async def _arrived(lines: asyncio.Queue[Line | None], max_batch: int) -> list[Line]:
    """The lines that have arrived; waits for at least one, unless the stream is over."""
    arrived: list[Line] = []
    line = await lines.get()
    while line is not None:
        arrived.append(line)
        if len(arrived) >= max_batch or lines.empty():
            return arrived
        line = lines.get_nowait()
    if arrived:
        lines.put_nowait(None)
    return arrived


def _line(number: int, raw: bytes | None, default: ConfigNames) -> Line:
    event_id = None
    try:
        if raw is None:
            raise problem.invalid("line", f"is longer than {LONGEST_LINE} bytes")
        value = parsed_object(raw, "line")
        given = value.get("eventId")
        event_id = given if isinstance(given, str) else None
        line = shapes.SlotRequest.parse(value)
        names, show_windows = line.names(default), line.config_names is not None
        return Line(number, names, line.request(), line.event_id, show_windows)
    except Problem as refused:
        return Line(number, default, refused, event_id)
    except PacelineError as error:
        return Line(number, default, problem.of(error), event_id)


def _too_many_bad_lines() -> Problem:
    detail = (
        f"this line is no slot request, and {MAX_BAD_LINES} before it were none; no line after it was read. "
        "Correct them and send the stream again: events that have a slot keep it"
    )
    return Problem(400, "too-many-bad-lines", "Too Many Bad Lines", detail)


async def _booked(slots: SlotScheduler, lines: list[Line]) -> dict[int, Booking | Problem]:
    """The outcome of each line, by its number."""
    outcomes: dict[int, Booking | Problem] = {}
    booked: list[Line] = []
    groups: list[tuple[ConfigNames, list[SlotRequest]]] = []
    for line in lines:
        if isinstance(line.request, Problem):
            outcomes[line.number] = line.request
            continue
        try:
            names = booking_names(line.config_names)
        except PacelineError as error:
            outcomes[line.number] = error
            continue
        booked.append(line)
        if not groups or groups[-1][0] != names:
            groups.append((names, []))
        groups[-1][1].append(line.request)
    numbers = [line.number for line in booked]
    try:
        bookings = await slots.book_groups([BookingGroup(name_tuple(names), requests) for names, requests in groups])
    except PacelineError as error:
        return outcomes | dict.fromkeys(numbers, error)
    outcomes |= zip(numbers, chain.from_iterable(bookings), strict=True)
    return outcomes


def _answer(line: Line, outcome: Booking | Problem) -> bytes:
    if isinstance(outcome, AssignedSlot):
        return shapes.Slot.of_slot(outcome, show_windows=line.show_windows).dump_json() + b"\n"
    refused = outcome if isinstance(outcome, Problem) else problem.of(outcome)
    failed = shapes.FailedEvent(line=line.number, event_id=line.event_id, error=refused.body)
    return failed.dump_json() + b"\n"
