"""A small SMSC: SMPP 3.4 over TCP, written from the specification, independent of the client it tests.

It binds transceivers, answers `enquire_link`, takes `submit_sm` and reports each message by a delivery receipt. It can
be slow, refuse by number, cut the connection instead of answering, freeze, and report before it answers.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

GENERIC_NACK = 0x80000000
SUBMIT_SM, DELIVER_SM, UNBIND, BIND_TRANSCEIVER, ENQUIRE_LINK = 0x04, 0x05, 0x06, 0x09, 0x15
RESPONSE = 0x80000000
ESME_ROK, ESME_RINVCMDID, ESME_RINVBNDSTS, ESME_RALYBND = 0x00, 0x03, 0x04, 0x05
ESME_RINVDSTADR, ESME_RINVPASWD, ESME_RMSGQFUL, ESME_RTHROTTLED = 0x0B, 0x0E, 0x14, 0x58
ENCODINGS = {1: "ascii", 3: "latin-1", 8: "utf-16-be"}
GSM = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ\x1bÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
ESCAPED = dict(zip(b"\x14\x28\x29\x2f\x3c\x3d\x3e\x40\x65", "^{}\\[~]|€", strict=True))
MESSAGE_PAYLOAD, RECEIPTED_MESSAGE_ID, MESSAGE_STATE = 0x0424, 0x001E, 0x0427
STATES = {"DELIVRD": 2, "EXPIRED": 3, "UNDELIV": 5, "ACCEPTD": 6, "REJECTD": 8}


class Submitted(NamedTuple):
    """A `submit_sm` as it arrived."""

    source: str
    destination: str
    text: str
    validity: str
    wants_receipt: bool
    coding: int
    source_type: tuple[int, int]
    """Its type of number and numbering plan."""


class Smsc:
    """The server, and what it is to do."""

    def __init__(self) -> None:
        self.port = 0
        self.password = "secret"
        self.delay = 0.0
        self.statuses: dict[str, int] = {}
        """What messages to a number are answered with; else ESME_ROK."""
        self.states: dict[str, str] = {}
        """The status in a number's receipts; else DELIVRD."""
        self.cuts: set[str] = set()
        """Numbers whose message is taken, and the connection cut instead of an answer."""
        self.answers = asyncio.Event()
        """Cleared: it hangs."""
        self.answers.set()
        self.decimal_receipts = False
        """Whether receipts name messages by decimal numbers, in their text alone, and answers by hexadecimal ones."""
        self.enquiries = 0
        self.reports_first = False
        """Whether a receipt is sent before the answer to its message."""
        self.submitted: list[Submitted] = []
        self.binds = 0
        self.unbinds = 0
        self.acknowledged = 0
        """Receipts that the client has confirmed."""
        self.pending = self.most_pending = 0
        """Messages taken and not yet answered; and the most that there ever were."""
        self.sessions: set[asyncio.StreamWriter] = set()
        self._ids = itertools.count(1)
        self._sequence = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def write(self, source: str, text: str, coding: int, header: bytes = b"", kind: int = 1) -> None:
        """Delivers what a person has written to every client."""
        data = header + (text.encode(ENCODINGS[coding]) if coding else septets_of(text))
        body = bytes((0, kind, 1)) + source.encode() + b"\0\0\0Shop\0" + bytes([0x40 if header else 0, 0, 0])
        body += b"\0\0" + bytes([0, 0, coding, 0, len(data)]) + data
        for writer in self.sessions:
            writer.write(_pdu(DELIVER_SM, ESME_ROK, next(self._sequence), body))

    def write_unreadable(self) -> None:
        """Delivers what is no message."""
        for writer in self.sessions:
            writer.write(_pdu(DELIVER_SM, ESME_ROK, next(self._sequence), b"\0\1"))

    def cut_all(self) -> None:
        """Closes every connection without an unbind."""
        for writer in self.sessions:
            writer.transport.abort()

    def unbind_all(self) -> None:
        """Asks every client to leave."""
        for writer in self.sessions:
            writer.write(_pdu(UNBIND, ESME_ROK, next(self._sequence)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length, command, _, sequence = struct.unpack(">4L", await reader.readexactly(16))
                body = await reader.readexactly(length - 16)
                await self.answers.wait()
                if not self._answer(writer, command, sequence, body):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.sessions.discard(writer)
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, command: int, sequence: int, body: bytes) -> bool:
        """Whether the connection stays open."""
        if command == BIND_TRANSCEIVER:
            system_id, password = body.split(b"\0")[:2]
            status = ESME_RALYBND if writer in self.sessions else ESME_ROK
            if password.decode() != self.password:
                status = ESME_RINVPASWD
            writer.write(_pdu(command | RESPONSE, status, sequence, system_id + b"\0"))
            if status == ESME_ROK:
                self.binds += 1
                self.sessions.add(writer)
            return status == ESME_ROK
        if command == ENQUIRE_LINK:
            self.enquiries += 1
            writer.write(_pdu(command | RESPONSE, ESME_ROK, sequence))
        elif command == SUBMIT_SM and writer not in self.sessions:
            writer.write(_pdu(command | RESPONSE, ESME_RINVBNDSTS, sequence))
        elif command == SUBMIT_SM:
            self._submit(writer, sequence, _submitted(body))
        elif command == UNBIND:
            self.unbinds += 1
            writer.write(_pdu(command | RESPONSE, ESME_ROK, sequence))
            return False
        elif command == DELIVER_SM | RESPONSE:
            self.acknowledged += 1
        elif not command & RESPONSE:
            writer.write(_pdu(GENERIC_NACK, ESME_RINVCMDID, sequence))
        return command != UNBIND | RESPONSE

    def _submit(self, writer: asyncio.StreamWriter, sequence: int, message: Submitted) -> None:
        self.submitted.append(message)
        if message.destination in self.cuts:
            writer.transport.abort()
            return
        status = self.statuses.get(message.destination, ESME_ROK)
        message_id = f"{next(self._ids):010x}"
        answer = _pdu(SUBMIT_SM | RESPONSE, status, sequence, b"" if status else message_id.encode() + b"\0")
        report = b""
        if message.wants_receipt and not status:
            state = self.states.get(message.destination, "DELIVRD")
            named = str(int(message_id, 16)) if self.decimal_receipts else message_id
            report = _receipt(next(self._sequence), message, named, state, tells=not self.decimal_receipts)
        # Answers need not keep the order of their requests.
        task = asyncio.get_running_loop().create_task(
            self._write_later(writer, report + answer if self.reports_first else answer + report)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_later(self, writer: asyncio.StreamWriter, pdus: bytes) -> None:
        self.pending += 1
        self.most_pending = max(self.pending, self.most_pending)
        if self.delay:
            await asyncio.sleep(self.delay)
        self.pending -= 1
        if not writer.is_closing():
            writer.write(pdus)


def _pdu(command: int, status: int, sequence: int, body: bytes = b"") -> bytes:
    return struct.pack(">4L", 16 + len(body), command, status, sequence) + body


def _submitted(body: bytes) -> Submitted:
    _, rest = body.split(b"\0", 1)
    source_type = rest[0], rest[1]
    source, rest = rest[2:].split(b"\0", 1)
    destination, rest = rest[2:].split(b"\0", 1)
    _, validity, rest = rest[3:].split(b"\0", 2)
    registered, _, coding, _, length = rest[:5]
    text, tlvs = rest[5 : 5 + length], rest[5 + length :]
    while tlvs:
        tag, size = struct.unpack(">2H", tlvs[:4])
        if tag == MESSAGE_PAYLOAD:
            text = tlvs[4 : 4 + size]
        tlvs = tlvs[4 + size :]
    decoded = text.decode(ENCODINGS[coding]) if coding else read_septets(text)
    return Submitted(
        source.decode(), destination.decode(), decoded, validity.decode(), bool(registered & 1), coding, source_type
    )


def septets_of(text: str) -> bytes:
    """The inverse of `read_septets`."""
    escaped = {character: bytes((0x1B, septet)) for septet, character in ESCAPED.items()}
    return b"".join(escaped.get(character) or bytes((GSM.index(character),)) for character in text)


def read_septets(text: bytes) -> str:
    """A text in GSM-7, a septet per byte, as 3GPP TS 23.038 has it."""
    septets = iter(text)
    return "".join(ESCAPED[next(septets)] if septet == 0x1B else GSM[septet] for septet in septets)


def _receipt(sequence: int, message: Submitted, message_id: str, state: str, *, tells: bool) -> bytes:
    """A `deliver_sm` as SMSCs send it (appendix B); one that `tells` has optional parameters, which say the same."""
    dates = "submit date:2611160900 done date:2611160901"
    text = f"id:{message_id} sub:001 dlvrd:001 {dates} stat:{state} err:000 text:{message.text[:20]}".encode()[:254]
    body = b"\0\1\1" + message.destination.encode() + b"\0\5\0" + message.source.encode() + b"\0"
    body += b"\4\0\0\0\0\0\0\0\0" + bytes([len(text)]) + text
    if not tells:
        return _pdu(DELIVER_SM, ESME_ROK, sequence, body)
    body += struct.pack(">2H", RECEIPTED_MESSAGE_ID, len(message_id) + 1) + message_id.encode() + b"\0"
    body += struct.pack(">2HB", MESSAGE_STATE, 1, STATES[state])
    return _pdu(DELIVER_SM, ESME_ROK, sequence, body)


@asynccontextmanager
async def smsc() -> AsyncIterator[Smsc]:
    """An SMSC in this event loop."""
    center = Smsc()
    server = await asyncio.start_server(center.serve, "127.0.0.1", 0)
    center.port = server.sockets[0].getsockname()[1]
    try:
        yield center
    finally:
        server.close()
        center.cut_all()


@contextmanager
def smsc_in_a_thread() -> Iterator[Smsc]:
    """An SMSC beside a test that has no event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = smsc()
    try:
        yield asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
