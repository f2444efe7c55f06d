"""Receipts over a provider's own connection: each is recorded, in any order and during outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from paceline.errors import InvalidInput, StoreUnavailable
from paceline.messaging import LogEntry, Record
from paceline.testing import eventually
from paceline_sms import receipts
from paceline_sms.inbound import Inbound
from paceline_sms.ports import NullObserver, Receipt
from paceline_sms.provider import Unavailable
from paceline_sms.receipts import EARLY_TRIES, EarlyReceipt, EarlyReceipts, ReceiptReader


class Connection:
    """A provider whose connection brings what is in `arriving`; an exception ends it."""

    def __init__(self) -> None:
        self.arriving: asyncio.Queue[Receipt | Inbound | Exception] = asyncio.Queue()
        self.opened = 0

    async def receipts(self) -> AsyncIterator[Receipt | Inbound]:
        self.opened += 1
        while True:
            arrived = await self.arriving.get()
            if isinstance(arrived, Exception):
                raise arrived
            yield arrived


class Messages(NullObserver):
    """Records receipts of known messages."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.known_after: dict[str, int] = {}
        """Messages that become known after this many lookups."""
        self.noted: list[Receipt] = []
        self.observed: list[tuple[str, bool | None, float]] = []
        self.taken: list[Inbound] = []
        self.unknown = 0
        self.is_away = False

    async def note(self, receipt: Receipt) -> float | None:
        if self.is_away:
            raise StoreUnavailable
        if receipt.provider_id not in self.known:
            self.unknown += 1
            if self.known_after.get(str(receipt.provider_id)) == self.unknown:
                self.known.add(str(receipt.provider_id))
            return None
        self.noted.append(receipt)
        return 0.5

    async def take(self, message: Inbound) -> None:
        if self.is_away:
            raise StoreUnavailable
        self.taken.append(message)

    def receipt(self, provider: str, delivered: bool | None, seconds: float) -> None:
        self.observed.append((provider, delivered, seconds))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "PAUSES", (0.001, 0.001, 0.001))
    monkeypatch.setattr(receipts, "LONGEST_PAUSE", 0.002)


async def begin(connection: Connection, messages: Messages) -> tuple[asyncio.Task[None], asyncio.Event]:
    reader = ReceiptReader("smpp", connection.receipts, messages.note, messages.take, messages, first_pause=0.001)
    stop = asyncio.Event()
    return asyncio.create_task(reader.run(stop)), stop


async def test_receipts_are_noted_under_the_name_the_settings_give() -> None:
    connection, messages = Connection(), Messages()
    messages.known = {"p-1"}
    running, stop = await begin(connection, messages)
    connection.arriving.put_nowait(Receipt("whatever", True, provider_id="p-1"))
    await eventually(lambda: messages.observed == [("smpp", True, 0.5)], within=10)
    assert messages.noted == [Receipt("smpp", True, provider_id="p-1")]
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_a_receipt_may_arrive_before_the_answer_to_its_message() -> None:
    connection, messages = Connection(), Messages()
    messages.known_after["p-1"] = 2
    running, stop = await begin(connection, messages)
    connection.arriving.put_nowait(Receipt("smpp", True, provider_id="p-1"))
    await eventually(lambda: messages.noted, within=10)
    assert messages.unknown == 2
    # The receipt of an unknown message is dropped, and delays no other.
    connection.arriving.put_nowait(Receipt("smpp", True, provider_id="somebody else's"))
    connection.arriving.put_nowait(Receipt("smpp", False, provider_id="p-1"))
    await eventually(lambda: len(messages.noted) == 2, within=10)
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_a_store_that_is_away_loses_no_receipt() -> None:
    connection, messages = Connection(), Messages()
    messages.known, messages.is_away = {"p-1", "p-2"}, True
    running, stop = await begin(connection, messages)
    for provider_id in ("p-1", "p-2"):
        connection.arriving.put_nowait(Receipt("smpp", True, provider_id=provider_id))
    await eventually(connection.arriving.empty, within=10)
    messages.is_away = False
    await eventually(lambda: len(messages.noted) == 2, within=10)
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_a_provider_that_is_away_is_asked_again_and_a_broken_one_is_reported() -> None:
    connection, messages = Connection(), Messages()
    messages.known = {"p-1"}
    running, _ = await begin(connection, messages)
    connection.arriving.put_nowait(Unavailable("no session"))
    connection.arriving.put_nowait(Receipt("smpp", True, provider_id="p-1"))
    await eventually(lambda: messages.noted, within=10)
    assert connection.opened == 2
    connection.arriving.put_nowait(RuntimeError("a mistake of the provider"))
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(running, 10)


class Kept:
    """A source of early receipts that keeps those that are to be tried again."""

    def __init__(self, *values: str) -> None:
        self.values = list(values)
        self.tries: list[int] = []

    async def join(self) -> Kept:
        return self

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        if not self.values:
            await asyncio.sleep(0.001)
        values, self.values = self.values[:max_records], self.values[max_records:]
        return [LogEntry(Record("t", "own", value), 0, number) for number, value in enumerate(values)]

    def interrupt(self) -> None:
        pass

    def holds(self, entry: LogEntry) -> bool:
        return True

    async def commit(self, done: object) -> None:
        pass

    async def close(self) -> None:
        pass


class KeptStore:
    def __init__(self, messages: Messages, kept: Kept) -> None:
        self.receive = messages.note
        self.kept = kept

    async def keep_receipt(self, early: EarlyReceipt) -> bool:
        self.kept.tries.append(early.tries)
        self.kept.values.append(early.to_record_value())
        return True


async def test_an_early_receipt_is_tried_again_until_its_message_is_known_or_it_is_given_up() -> None:
    messages = Messages()
    messages.known_after["p-1"] = 3
    receipt = Receipt("twilio", True, provider_id="p-1", reason="ü")
    kept = Kept("poison", EarlyReceipt(receipt).to_record_value())
    stop = asyncio.Event()
    running = asyncio.create_task(EarlyReceipts(kept.join, KeptStore(messages, kept), messages).run(stop))
    await eventually(lambda: messages.observed == [("twilio", True, 0.5)], within=10)
    assert messages.noted == [receipt]
    assert kept.tries == [1, 2, 3]
    kept.tries.clear()
    kept.values.append(EarlyReceipt(receipt._replace(provider_id="somebody else's")).to_record_value())
    await eventually(lambda: kept.tries == list(range(1, EARLY_TRIES)) and not kept.values, within=10)
    stop.set()
    await asyncio.wait_for(running, 10)
    assert len(messages.noted) == 1


def test_an_early_receipt_waits_longer_than_a_provider_may_take_to_answer() -> None:
    receipt = Receipt("twilio", True, provider_id="p-1")
    assert sum(EarlyReceipt(receipt, tries).pause.total_seconds() for tries in range(EARLY_TRIES)) >= 300
    with pytest.raises(InvalidInput):
        EarlyReceipt.from_record_value('{"receipt": [], "tries": 0}')


async def test_a_message_of_a_person_is_taken_before_the_next_one_is_read() -> None:
    connection, messages = Connection(), Messages()
    messages.is_away = True
    running, stop = await begin(connection, messages)
    first, second = (Inbound(name, "+491701234567", "STOP") for name in ("1", "2"))
    connection.arriving.put_nowait(first)
    connection.arriving.put_nowait(second)
    await eventually(lambda: connection.arriving.qsize() == 1, within=10)
    assert messages.taken == []
    messages.is_away = False
    await eventually(lambda: messages.taken == [first, second], within=10)
    stop.set()
    await running
