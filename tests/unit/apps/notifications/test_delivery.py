"""The sender: in order per user, again after a failure, to the dead letters at last, each id once."""

from __future__ import annotations

import asyncio
import json

import pytest

from headgate.apps.notifications.delivery import Delivery
from headgate.apps.notifications.ports import DeliveryOutcome
from headgate.errors import BrokerUnavailable
from headgate.messaging import Record
from headgate.testing import eventually
from tests.unit.apps.notifications.fakes import MemoryDeliveries, MemoryLog, MemorySource, ScriptedSender, refused


def record(user: int, message_id: str) -> Record:
    return Record("t", str(user), json.dumps({"userId": user, "message": f"m{message_id}", "messageId": message_id}))


class Bench:
    def __init__(self, *records: Record, attempts: int = 3) -> None:
        self.source = MemorySource(records)
        self.store = MemoryDeliveries()
        self.sender = ScriptedSender()
        self.log = MemoryLog()
        self.stop = asyncio.Event()
        self.delivery = Delivery(
            self._join,
            self.store,
            self.sender,
            self.log,
            attempts=attempts,
            first_pause=0.001,
            longest_pause=0.002,
        )

    async def _join(self) -> MemorySource:
        return self.source

    async def run(self) -> None:
        """Until everything is committed."""
        running = asyncio.create_task(self.delivery.run(self.stop))
        await asyncio.wait_for(self.source.drained.wait(), 10)
        self.stop.set()
        await running
        assert self.source.closed

    @property
    def sent(self) -> list[str]:
        return [message.message_id for message in self.sender.sent]


async def test_messages_of_a_user_go_out_in_order_also_over_a_retry() -> None:
    bench = Bench(*(record(n % 3, str(n)) for n in range(12)))
    bench.sender.script["0"] = [refused()]
    bench.sender.script["4"] = [refused(), refused()]
    await bench.run()
    for user in range(3):
        own = [each for each in bench.sent if int(each) % 3 == user]
        assert own == sorted(own, key=int)
        assert len(own) == 4
    assert bench.store.outcomes["4"] == DeliveryOutcome("4", 1, True, 3)


async def test_a_known_message_id_is_not_sent_again() -> None:
    bench = Bench(record(1, "a"), record(1, "b"), record(1, "a"))
    bench.store.outcomes["b"] = DeliveryOutcome("b", 1, True, 1)
    await bench.run()
    assert bench.sent == ["a"]


async def test_what_fails_too_often_or_for_good_is_dead_lettered_and_the_next_goes_on() -> None:
    bench = Bench(record(1, "often"), record(1, "never"), record(1, "broken"), record(1, "fine"))
    bench.sender.script["often"] = [refused("busy") for _ in range(3)]
    bench.sender.script["never"] = [refused("wrong number", permanent=True)]
    bench.sender.script["broken"] = [KeyError("a mistake of the sender") for _ in range(3)]
    await bench.run()
    assert bench.sent == ["fine"]
    letters = [(each.topic, json.loads(each.value)) for each in bench.log.records]
    assert [topic for topic, _ in letters] == ["t-dlt"] * 3
    assert [(letter["reason"], letter["attempts"]) for _, letter in letters] == [
        ("busy", 3),
        ("wrong number", 1),
        ("the sender failed: KeyError", 3),
    ]
    assert {each for each, outcome in bench.store.outcomes.items() if not outcome.sent} == {"often", "never", "broken"}


async def test_what_can_not_be_read_is_dead_lettered_as_it_is() -> None:
    bench = Bench(Record("t", "1", "rubbish"), record(1, "fine"))
    await bench.run()
    assert bench.sent == ["fine"]
    assert [json.loads(each.value)["value"] for each in bench.log.records] == ["rubbish"]


async def test_a_dead_letter_says_whose_it_is(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Record("t", "7", "rubbish"), record(1, "never"))
    bench.sender.script["never"] = [refused("wrong number", permanent=True)]
    await bench.run()
    buried = [each.__dict__ for each in caplog.records if "dead-lettered" in each.getMessage()]
    assert sorted((str(each["user_id"]), each.get("message_id")) for each in buried) == [("1", "never"), ("7", None)]


async def test_a_store_that_is_away_for_a_while_loses_and_doubles_nothing() -> None:
    bench = Bench(record(1, "a"), record(2, "b"))
    bench.source.failures = 3
    bench.store.failures = 5
    await bench.run()
    assert sorted(bench.sent) == ["a", "b"]


async def test_dead_letters_wait_for_the_broker() -> None:
    bench = Bench(record(1, "a"))
    bench.sender.script["a"] = [refused(permanent=True)]
    bench.log.down = BrokerUnavailable()
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: bench.sender.tries)
    assert not bench.source.committed
    bench.log.down = None
    await asyncio.wait_for(bench.source.drained.wait(), 10)
    bench.stop.set()
    await running
    assert len(bench.log.records) == 1


async def test_on_stop_it_commits_what_is_done_and_leaves_the_rest() -> None:
    bench = Bench(record(1, "fails"), record(1, "behind"), record(2, "fine"), attempts=20_000)
    bench.sender.script["fails"] = [refused() for _ in range(20_000)]
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: bench.sent and bench.sender.tries > 2)
    bench.stop.set()
    await asyncio.wait_for(running, 10)
    assert [each.record.key for each in bench.source.committed] == ["2"]
    assert set(bench.store.outcomes) == {"fine"}
    assert bench.log.records == []
