"""One SMPP 3.4 session, bound as a transceiver: requests and their answers over one connection, several in flight.

What was written and has no answer when the connection ends is `Unanswered`; nobody knows whether it was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import struct
from collections.abc import AsyncGenerator
from typing import NamedTuple

GENERIC_NACK, RESPONSE = 0x80000000, 0x80000000
SUBMIT_SM, DELIVER_SM, UNBIND, BIND_TRANSCEIVER, ENQUIRE_LINK = 0x04, 0x05, 0x06, 0x09, 0x15
ESME_ROK, ESME_RINVCMDID = 0x00, 0x03
VERSION = 0x34
MAX_PDU = 1 << 20
HEAD = struct.Struct(">4L")
BIND_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""How long `enquire_link` and `unbind` may wait for their answer."""

_log = logging.getLogger(__name__)


class NotBound(Exception):
    """Nothing was sent: there is no session, or it has ended."""


class WindowFull(Exception):
    """Nothing was sent: as many requests as the window allows have no answer yet."""


class Unanswered(Exception):
    """A request was sent, and the connection ended before its answer."""


class Answer(NamedTuple):
    """The response to a request."""

    status: int
    body: bytes


class Delivery(NamedTuple):
    """A `deliver_sm`: a receipt, or a message of a person."""

    sequence: int
    body: bytes


class SmppSession:
    """Made by `bind`. Answers the other side's `enquire_link`, and ends if its own has no answer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, window: int, enquire_seconds: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._window = asyncio.Semaphore(window)
        self._sequence = itertools.cycle(range(1, 0x7FFFFFFF))
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self.is_bound = True
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._enquire(enquire_seconds))]

    @classmethod
    async def bind(
        cls,
        host: str,
        port: int,
        system_id: str,
        password: str,
        *,
        system_type: str = "",
        tls: ssl.SSLContext | None = None,
        window: int,
        enquire_seconds: float,
    ) -> SmppSession:
        """Connects and binds.

        Raises:
            NotBound: The SMSC is away, or refuses.
        """
        try:
            async with asyncio.timeout(BIND_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        except (OSError, TimeoutError) as error:
            raise NotBound(f"no connection: {error or 'timeout'}") from error
        session = cls(reader, writer, window=window, enquire_seconds=enquire_seconds)
        body = b"".join(text.encode() + b"\0" for text in (system_id, password, system_type))
        try:
            async with asyncio.timeout(BIND_SECONDS):
                answer = await session.request(BIND_TRANSCEIVER, body + bytes((VERSION, 0, 0, 0)))
        except (Unanswered, TimeoutError) as error:
            await session.close()
            raise NotBound("the bind has no answer") from error
        if answer.status != ESME_ROK:
            await session.close()
            raise NotBound(f"the bind is refused: {answer.status:#x}")
        return session

    async def submit(self, body: bytes, window_seconds: float) -> Answer:
        """The answer to a `submit_sm`. One whose caller no longer waits takes its place in the window until it is
        answered.

        Raises:
            WindowFull: No place came free in time.
            NotBound: The session has ended.
            Unanswered: It ended before the answer.
        """
        try:
            async with asyncio.timeout(window_seconds):
                await self._window.acquire()
        except TimeoutError as error:
            raise WindowFull from error
        try:
            answer = self._send(SUBMIT_SM, body)
        except NotBound:
            self._window.release()
            raise
        answer.add_done_callback(lambda _: self._window.release())
        return await asyncio.shield(answer)

    async def request(self, command: int, body: bytes = b"") -> Answer:
        """The answer to another request.

        Raises:
            NotBound: The session has ended.
            Unanswered: It ended before the answer.
        """
        return await self._send(command, body)

    async def deliveries(self) -> AsyncGenerator[Delivery, None]:
        """What the SMSC delivers, until the session ends. Each is acknowledged when the next one is asked for: what its
        reader did not process is delivered again."""
        while (delivery := await self._deliveries.get()) is not None:
            yield delivery
            self._write(DELIVER_SM | RESPONSE, delivery.sequence, b"\0")

    async def close(self) -> None:
        """Unbinds, and closes the connection."""
        if self.is_bound:
            with contextlib.suppress(Unanswered, NotBound, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self.request(UNBIND)
        self._end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, command: int, body: bytes) -> asyncio.Future[Answer]:
        if not self.is_bound:
            raise NotBound("the session has ended")
        sequence = next(self._sequence)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[sequence] = answer
        self._write(command, sequence, body)
        return answer

    def _write(self, command: int, sequence: int, body: bytes = b"", status: int = ESME_ROK) -> None:
        if self.is_bound:
            self._writer.write(HEAD.pack(HEAD.size + len(body), command, status, sequence) + body)

    async def _read(self) -> None:
        try:
            while True:
                length, command, status, sequence = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if not HEAD.size <= length <= MAX_PDU:
                    _log.warning("the SMSC sent a PDU of %d bytes; the session ends", length)
                    break
                body = await self._reader.readexactly(length - HEAD.size)
                if command & RESPONSE:
                    answer = self._answers.pop(sequence, None)
                    if answer is not None and not answer.done():
                        answer.set_result(Answer(status or (ESME_RINVCMDID if command == GENERIC_NACK else 0), body))
                elif command == DELIVER_SM:
                    self._deliveries.put_nowait(Delivery(sequence, body))
                elif command in (ENQUIRE_LINK, UNBIND):
                    self._write(command | RESPONSE, sequence)
                    if command == UNBIND:
                        break
                else:
                    self._write(GENERIC_NACK, sequence, status=ESME_RINVCMDID)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the connection has ended, which is said below to everybody who waits
        finally:
            self._end()

    async def _enquire(self, seconds: float) -> None:
        try:
            while self.is_bound:
                await asyncio.sleep(seconds)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self.request(ENQUIRE_LINK)
        except TimeoutError:
            _log.warning("the SMSC does not answer enquire_link; the session ends")
        except (NotBound, Unanswered):
            pass  # it has ended
        finally:
            self._end()

    def _end(self) -> None:
        if not self.is_bound:
            return
        self.is_bound = False
        self._writer.close()
        self._deliveries.put_nowait(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unanswered("the connection ended before the answer"))
                answer.exception()  # its caller may have left
        self._answers.clear()
