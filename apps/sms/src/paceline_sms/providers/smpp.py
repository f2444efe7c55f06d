"""The provider `smpp`: an operator's or aggregator's SMSC, over one session that is bound when it is needed."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import struct
import uuid
from collections.abc import AsyncGenerator
from typing import NamedTuple
from urllib.parse import urlsplit

from paceline.errors import InvalidInput
from paceline_sms.inbound import Inbound
from paceline_sms.ports import Receipt
from paceline_sms.provider import Accepted, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.providers.smpp_session import ESME_ROK, Delivery, NotBound, SmppSession, Unanswered, WindowFull
from paceline_sms.recipients import checked_phone
from paceline_sms.segments import Encoding, decoded

NAME = "smpp"
VERDICTS = {0x01: "the text is too long", 0x0B: "the number is not valid"}
"""ESME_RINVMSGLEN, ESME_RINVDSTADR: no other attempt would end otherwise."""
BUSY = (0x14, 0x58)
"""ESME_RMSGQFUL, ESME_RTHROTTLED."""
BUSY_SECONDS = 1.0
WINDOW_SECONDS = 1.0
"""How long a message waits for a place in the window."""
LONGEST_SHORT = 254
GSM, UCS_2 = 0, 8
NUMBERS = (0, 1)
"""Types of a sender that is a number with its country: unknown, international."""
CODINGS = {1: "ascii", 3: "latin-1", UCS_2: "utf-16-be"}
HAS_HEADER, RECEIPT_TYPES = 0x40, (0x04, 0x08)
"""Of `esm_class`: user data begins with a header; what a delivery is, if it is no message of a person."""
RECEIPTED_MESSAGE_ID, MESSAGE_PAYLOAD, MESSAGE_STATE = 0x001E, 0x0424, 0x0427
STATES = dict(enumerate(["ENROUTE", "DELIVRD", "EXPIRED", "DELETED", "UNDELIV", "ACCEPTD", "UNKNOWN", "REJECTD"], 1))
FINAL = {"DELIVRD": True, "EXPIRED": False, "DELETED": False, "UNDELIV": False, "REJECTD": False}
_REPORT = re.compile(rb"id:(\S+)\s.*?stat:(\w+)", re.IGNORECASE | re.DOTALL)

_log = logging.getLogger(__name__)


class SmppProvider:
    """Hands messages to an SMSC at `smpp://host:port`, or `smpps://` with TLS, from `sender`: a number, a short code or
    a name. With `hexadecimal_ids`, it gives its ids in hexadecimal, and names them in receipts as decimal numbers."""

    def __init__(
        self,
        url: str,
        system_id: str,
        password: str,
        sender: str = "",
        *,
        system_type: str = "",
        window: int = 10,
        enquire_seconds: float = 30.0,
        hexadecimal_ids: bool = False,
    ) -> None:
        self._url = urlsplit(url)
        self._account = system_id, password
        self._sender = sender
        self._system_type = system_type
        self._window = window
        self._enquire_seconds = enquire_seconds
        self._hexadecimal_ids = hexadecimal_ids
        self._bound: SmppSession | None = None
        self._binding = asyncio.Lock()

    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        if message.to is None:
            return Rejected("there is no number to send to: configure the user's phone, or send with to")
        session = await self._session()
        try:
            answer = await session.submit(
                _submit_sm(message, message.to, message.sender or self._sender), WINDOW_SECONDS
            )
        except NotBound as error:
            raise Unavailable(str(error)) from error
        except WindowFull as error:
            raise Unavailable("the window is full", throttled=True) from error
        except Unanswered as error:
            return Unknown(str(error))
        if answer.status == ESME_ROK:
            name = answer.body.split(b"\0")[0].decode("ascii", "replace")
            return Accepted(_decimal(name) if self._hexadecimal_ids else name)
        if answer.status in VERDICTS:
            return Rejected(VERDICTS[answer.status])
        busy = answer.status in BUSY
        raise Unavailable(
            f"the SMSC answered {answer.status:#x}", throttled=busy, retry_after=BUSY_SECONDS if busy else None
        )

    async def receipts(self) -> AsyncGenerator[Receipt | Inbound, None]:
        """Receipts, and messages of people."""
        while True:
            session = await self._session()
            async for delivery in session.deliveries():
                if (read := _read(delivery, self._hexadecimal_ids)) is not None:
                    yield read

    async def check(self) -> None:
        """Returns when a session is bound.

        Raises:
            Unavailable: It can't be.
        """
        await self._session()

    async def close(self) -> None:
        if self._bound is not None:
            await self._bound.close()

    async def _session(self) -> SmppSession:
        async with self._binding:
            if self._bound is None or not self._bound.is_bound:
                if self._bound is not None:
                    await self._bound.close()
                try:
                    self._bound = await SmppSession.bind(
                        self._url.hostname or "",
                        self._url.port or 2775,
                        *self._account,
                        system_type=self._system_type,
                        tls=ssl.create_default_context() if self._url.scheme == "smpps" else None,
                        window=self._window,
                        enquire_seconds=self._enquire_seconds,
                    )
                except NotBound as error:
                    raise Unavailable(str(error)) from error
            return self._bound


def _submit_sm(message: SmsMessage, to: str, sender: str) -> bytes:
    coding, text = (GSM if message.encoding is Encoding.GSM_7 else UCS_2), message.user_data
    short, long = (text, b"") if len(text) <= LONGEST_SHORT else (b"", text)
    until = f"{message.deadline:%y%m%d%H%M%S}000+".encode()
    body = b"\0" + _source(sender) + b"\1\1" + to.removeprefix("+").encode() + b"\0"
    body += bytes((0, 0, 0)) + b"\0" + until + b"\0" + bytes((1, 0, coding, 0, len(short))) + short
    return body + (struct.pack(">2H", MESSAGE_PAYLOAD, len(long)) + long if long else b"")


def _source(sender: str) -> bytes:
    """Type, plan and address of the sender: international, national or alphanumeric."""
    if sender.startswith("+"):
        return b"\1\1" + sender[1:].encode() + b"\0"
    return (b"\5\0" if any(c.isalpha() for c in sender) else b"\0\1" if sender else b"\0\0") + sender.encode() + b"\0"


class _Fields(NamedTuple):
    type: int
    source: str
    esm_class: int
    coding: int
    text: bytes
    tlvs: dict[int, bytes]


def _fields(body: bytes) -> _Fields:
    _, rest = body.split(b"\0", 1)
    kind = rest[0]
    source, rest = rest[2:].split(b"\0", 1)
    _, rest = rest[2:].split(b"\0", 1)
    esm_class = rest[0]
    _, _, rest = rest[3:].split(b"\0", 2)
    coding, length = rest[2], rest[4]
    text, rest, tlvs = rest[5 : 5 + length], rest[5 + length :], {}
    while rest:
        tag, size = struct.unpack_from(">2H", rest)
        tlvs[tag], rest = rest[4 : 4 + size], rest[4 + size :]
    return _Fields(kind, source.decode("ascii", "replace"), esm_class, coding, tlvs.get(MESSAGE_PAYLOAD, text), tlvs)


def _read(delivery: Delivery, hexadecimal_ids: bool) -> Receipt | Inbound | None:
    """What a delivery says; None if nothing can be done with it."""
    try:
        fields = _fields(delivery.body)
        is_receipt = fields.esm_class & 0x3C in RECEIPT_TYPES
        return _receipt(fields, hexadecimal_ids) if is_receipt else _inbound(fields)
    except (ValueError, IndexError, struct.error, InvalidInput) as error:
        _log.warning("a deliver_sm can't be read and is skipped: %s", error)
        return None


def _receipt(fields: _Fields, hexadecimal_ids: bool) -> Receipt:
    """By its optional parameters, else by its text (appendix B of the specification)."""
    report = _REPORT.search(fields.text)
    state = STATES.get(fields.tlvs.get(MESSAGE_STATE, b"\0")[0], report[2].decode("ascii", "replace") if report else "")
    if named := fields.tlvs.get(RECEIPTED_MESSAGE_ID, b"").split(b"\0")[0].decode("ascii", "replace"):
        name = _decimal(named) if hexadecimal_ids else named
    else:
        name = report[1].decode("ascii", "replace") if report else ""
        name = name.lstrip("0") if hexadecimal_ids else name
    if not name or not state:
        raise ValueError("a receipt without an id or a state")
    return Receipt(NAME, FINAL.get(state.upper()), None, name, state.upper())


def _decimal(name: str) -> str:
    try:
        return str(int(name, 16))
    except ValueError:
        return name


def _inbound(fields: _Fields) -> Inbound:
    if fields.type not in NUMBERS:
        raise ValueError("it is not from a number")
    text = fields.text[fields.text[0] + 1 :] if fields.esm_class & HAS_HEADER else fields.text
    words = decoded(text) if fields.coding == GSM else text.decode(CODINGS.get(fields.coding, "ascii"), "replace")
    # Its sender has no id for it: what it delivers again, because its acknowledgement was lost, is a new message.
    return Inbound(uuid.uuid4().hex, checked_phone(f"+{fields.source.removeprefix('+')}", "source_addr"), words)
