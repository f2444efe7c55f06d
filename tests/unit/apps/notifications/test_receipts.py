"""Receipts over a provider's own connection: each is noted, whatever comes first, and whatever is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.apps.notifications import receipts
from headgate.apps.notifications.ports import NullObserver, Receipt
from headgate.apps.notifications.provider import Unavailable
from headgate.apps.notifications.receipts import ReceiptReader
from headgate.errors import StoreUnavailable
from headgate.testing import eventually


class Connection:
    """A provider whose connection brings what is in `arriving`; an exception ends it."""

    def __init__(self) -> None:
        self.arriving: asyncio.Queue[Receipt | Exception] = asyncio.Queue()
        self.opened = 0

    async def receipts(self) -> AsyncIterator[Receipt]:
        self.opened += 1
        while True:
            arrived = await self.arriving.get()
            if isinstance(arrived, Exception):
                raise arrived
            yield arrived


class Messages(NullObserver):
    """Notes receipts of the messages that it knows."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.known_after: dict[str, int] = {}
        """Messages that become known when they were asked for so often."""
        self.noted: list[Receipt] = []
        self.observed: list[tuple[str, bool, float]] = []
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

    def receipt(self, provider: str, delivered: bool, seconds: float) -> None:
        self.observed.append((provider, delivered, seconds))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "PAUSES", (0.001, 0.001, 0.001))
    monkeypatch.setattr(receipts, "LONGEST_PAUSE", 0.002)


async def begin(connection: Connection, messages: Messages) -> tuple[asyncio.Task[None], asyncio.Event]:
    reader = ReceiptReader("smpp", connection.receipts, messages.note, messages, first_pause=0.001)
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
    # One that nobody knows is given up, and holds up no other.
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
