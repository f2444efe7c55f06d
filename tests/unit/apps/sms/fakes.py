"""A message log, a store and a sender in this process's memory, for tests of the code between them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from paceline.errors import PacelineError, StoreUnavailable
from paceline.messaging import LogEntry, Record
from paceline_sms.model import Message
from paceline_sms.ports import Claim, DeadLetter, DeliveryOutcome, MessageClaim, Parking
from paceline_sms.provider import Accepted, Rejected, SmsMessage, Unknown
from paceline_sms.recipients import Recipient


class MemoryLog:
    """Keeps what is published; `down` refuses."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.down: PacelineError | None = None

    async def publish(self, records: Sequence[Record]) -> list[PacelineError | None]:
        await asyncio.sleep(0)
        if self.down is not None:
            return [self.down] * len(records)
        self.records += records
        return [None] * len(records)

    async def read(self, topic: str, group: str) -> MemorySource:
        return MemorySource([record for record in self.records if record.topic == topic])

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        pass


class MemorySource:
    """Hands out a list of records once; `drained` is set when all are committed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._left = [LogEntry(record, 0, position) for position, record in enumerate(records)]
        self._open = len(records)
        self.committed: list[LogEntry] = []
        self.failures = 0
        self.receives = 0
        self.lost: set[int] = set()
        self.closed = False
        self.drained = asyncio.Event()

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable
        batch, self._left = self._left[:max_records], self._left[max_records:]
        self.receives += 1
        await asyncio.sleep(0 if batch else min(wait, 0.005))
        return batch

    def interrupt(self) -> None:
        pass

    def holds(self, entry: LogEntry) -> bool:
        return entry.position not in self.lost

    async def commit(self, done: Sequence[LogEntry]) -> None:
        self.committed += done
        if len(self.committed) == self._open:
            self.drained.set()

    async def close(self) -> None:
        self.closed = True


class MemoryMessages:
    """A `DeliveryStore` in memory; the first `failures` calls fail."""

    def __init__(self) -> None:
        self.outcomes: dict[str, DeliveryOutcome] = {}
        self.owners: dict[str, str] = {}
        self.parkings: dict[str, Parking] = {}
        self.letters: list[DeadLetter] = []
        self.parked: list[tuple[Record, int]] = []
        self.held: list[tuple[Record, int]] = []
        self.opted_out: set[str] = set()
        self.optouts: dict[str, str] = {}
        self.recipient = Recipient()
        self.renewals = 0
        self.failures = 0

    async def claim(self, messages: Sequence[Message], owner: str) -> dict[str, MessageClaim]:
        self._fail()
        return {message.message_id: self._claim(message.message_id, owner) for message in messages}

    def _claim(self, message_id: str, owner: str) -> MessageClaim:
        attempts, unknown_provider = self.parkings.get(message_id, Parking(0))
        if message_id in self.outcomes:
            return MessageClaim(Claim.DONE, attempts, self.recipient)
        if self.owners.setdefault(message_id, owner) != owner:
            return MessageClaim(Claim.BUSY, attempts, self.recipient)
        return MessageClaim(Claim.MINE, attempts, self.recipient, message_id in self.opted_out, unknown_provider)

    async def renew(self, message_ids: Sequence[str], owner: str) -> list[str]:
        self._fail()
        self.renewals += 1
        return [message_id for message_id in message_ids if self.owners.get(message_id) == owner]

    async def release(self, message_ids: Sequence[str], owner: str) -> None:
        for message_id in message_ids:
            self.owners.pop(message_id, None)

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        self._fail()
        for outcome in outcomes:
            self.outcomes[outcome.message_id] = outcome
            self.owners.pop(outcome.message_id, None)

    async def bury(self, letters: Sequence[DeadLetter], outcomes: Sequence[DeliveryOutcome]) -> None:
        await self.settle(outcomes)
        self.letters += letters

    async def park(self, records: Sequence[tuple[Record, int]], claims: Mapping[str, Parking], owner: str) -> None:
        self._fail()
        self.parkings.update(claims)
        await self.release(list(claims), "")
        self.parked += records

    async def hold(self, record: Record, outcome: DeliveryOutcome, until_ms: int) -> None:
        await self.settle([outcome])
        self.held.append((record, until_ms))

    async def opt_out(self, phone: str, reason: str) -> None:
        self._fail()
        self.optouts[phone] = reason

    async def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable


class ScriptedProvider:
    """Follows its script, one entry per call; then accepts."""

    def __init__(self) -> None:
        self.script: dict[str, list[BaseException | Accepted | Rejected | Unknown]] = defaultdict(list)
        self.hangs: set[int] = set()
        self.sent: list[SmsMessage] = []
        self.calls: list[str] = []

    async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown:
        self.calls.append(message.id)
        await asyncio.sleep(0)
        if message.user_id in self.hangs:
            await asyncio.sleep(3600)
        if self.script[message.id]:
            step = self.script[message.id].pop(0)
            if isinstance(step, Accepted | Rejected | Unknown):
                return step
            raise step
        self.sent.append(message)
        return Accepted(f"p-{message.id}")
