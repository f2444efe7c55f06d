"""The sender: in order per user, no user waits for another, each id once; an outage is no message's fault."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from paceline.circuit_breaker import Breaker, BreakerPolicy
from paceline.errors import BrokerUnavailable
from paceline.messaging import LogEntry, Record
from paceline.testing import eventually
from paceline_sms import delivery
from paceline_sms.delivery import LEASE_SECONDS, Delivery
from paceline_sms.ports import DeliveryOutcome, Parking, Status
from paceline_sms.provider import Accepted, OnUnknown, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.provider_chain import NamedProvider, ProviderChain
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.recipients import Recipient
from tests.unit.apps.sms.fakes import MemoryLog, MemoryMessages, MemorySource, ScriptedProvider

QUICK = BreakerPolicy(failures=5, first_pause=0.002, longest_pause=0.004)


def record(user: int, message_id: str, **members: Any) -> Record:
    document = {"userId": user, "message": f"m{message_id}", "messageId": message_id, **members}
    return Record("t", str(user), json.dumps(document))


class Bench:
    def __init__(
        self,
        *records: Record,
        timeout: float = 5.0,
        after: Bench | None = None,
        on_unknown: OnUnknown = OnUnknown.HOLD,
        **options: Any,
    ) -> None:
        self.source = MemorySource(records)
        self.store: MemoryMessages = after.store if after else MemoryMessages()
        self.provider: ScriptedProvider = after.provider if after else ScriptedProvider()
        self.log = MemoryLog()
        self.stop = asyncio.Event()
        entry = NamedProvider("scripted", self.provider, breaker=Breaker(QUICK), on_unknown=on_unknown)
        self.delivery = Delivery(
            self._join,
            self.store,
            ProviderChain([entry], timeout=timeout),
            topic="t",
            copies=self.log,
            first_pause=0.001,
            longest_pause=0.002,
            **{"attempts": 3, **options},
        )

    async def _join(self) -> MemorySource:
        return self.source

    async def run(self) -> None:
        """Until everything is committed."""
        running = asyncio.create_task(self.delivery.run(self.stop))
        await asyncio.wait_for(self.source.drained.wait(), 10)
        await self.end(running)
        assert self.source.closed

    async def end(self, running: asyncio.Task[None]) -> None:
        self.stop.set()
        await asyncio.wait_for(running, 10)

    @property
    def sent(self) -> list[str]:
        return [message.id for message in self.provider.sent]


async def test_messages_of_a_user_go_out_in_order_also_over_a_retry() -> None:
    bench = Bench(*(record(n % 3, str(n)) for n in range(12)))
    bench.provider.script["0"] = [Unavailable()]
    bench.provider.script["4"] = [Unavailable(), Unavailable()]
    await bench.run()
    for user in range(3):
        own = [message_id for message_id in bench.sent if int(message_id) % 3 == user]
        assert own == sorted(own, key=int)
        assert len(own) == 4
    assert bench.store.outcomes["4"] == DeliveryOutcome("4", Status.SENT, 3, "scripted", "p-4")


async def test_a_known_message_id_is_not_sent_again() -> None:
    bench = Bench(record(1, "a"), record(1, "b"), record(1, "a"), record(2, "a"))
    bench.store.outcomes["b"] = DeliveryOutcome("b", Status.SENT, 1)
    await bench.run()
    assert bench.sent == ["a"]


async def test_a_frozen_sender_claims_a_message_again_before_its_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease has ended meanwhile, and another sender has sent the message."""
    bench, passed = Bench(record(1, "a")), [0.0]
    monkeypatch.setattr(delivery, "uptime", lambda: 1000.0 + passed[0])
    send = bench.provider.send

    async def stand_still(message: SmsMessage) -> Accepted | Rejected | Unknown:
        passed[0] += LEASE_SECONDS
        await bench.store.settle([DeliveryOutcome("a", Status.SENT, 1)])
        return await send(message)

    bench.provider.send = stand_still  # type: ignore[method-assign]
    bench.provider.script["a"] = [Unavailable()]
    await bench.run()
    assert bench.provider.calls == ["a"]
    assert bench.sent == []


async def test_a_message_that_its_former_sender_notes_as_sent_late_is_not_sent_again() -> None:
    """That one could not reach the store for longer than its lease; this one's claim is young. Simulation 6000018."""
    bench = Bench(record(1, "a"))
    send = bench.provider.send

    async def lose_to_the_former(message: SmsMessage) -> Accepted | Rejected | Unknown:
        await bench.store.settle([DeliveryOutcome("a", Status.SENT, 1)])
        return await send(message)

    bench.provider.send = lose_to_the_former  # type: ignore[method-assign]
    bench.provider.script["a"] = [Unavailable()]
    await bench.run()
    assert bench.provider.calls == ["a"]
    assert bench.sent == []


async def test_one_hanging_user_delays_nobody() -> None:
    """15.2: no barrier between users; a call that hangs times out by itself, and nobody knows what became of it."""
    hanging = [record(1, f"h{n}") for n in range(8)]
    others = [record(user, f"o{user}-{n}") for n in range(20) for user in range(2, 12)]
    bench = Bench(*hanging, *others, timeout=0.05, window=100)
    bench.provider.hangs = {1}
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    # The hanging call is still on the wire when all others are out.
    await eventually(lambda: len(bench.sent) == 200)
    assert set(bench.sent) == {json.loads(other.value)["messageId"] for other in others}
    await asyncio.wait_for(bench.source.drained.wait(), 10)
    await bench.end(running)
    # Each was called once, in order, and is held; nothing of it is a dead letter.
    own = [f"h{n}" for n in range(8)]
    assert [message_id for message_id in bench.provider.calls if message_id in own] == own
    assert [json.loads(held.value)["messageId"] for held, _ in bench.store.held] == own
    assert {held.topic for held, _ in bench.store.held} == {"t-unknown"}
    assert {bench.store.outcomes[message_id].status for message_id in own} == {Status.UNKNOWN}
    assert not bench.store.letters


async def test_what_follows_a_lane_that_was_put_aside_is_put_aside_too() -> None:
    bench = Bench(record(1, "a"), *(record(2, f"b{n}") for n in range(5)))
    bench.provider.script["a"] = [Unavailable() for _ in range(3)]
    await bench.run()
    later = Bench(record(1, "later"))
    later.delivery._parked = bench.delivery._parked
    await later.run()
    assert later.sent == []
    assert [json.loads(each.value)["messageId"] for each, _ in later.store.parked] == ["later"]


async def test_a_sender_that_is_stopped_while_it_joins_does_not_wait_for_records() -> None:
    interrupted = asyncio.Event()

    class Quiet(MemorySource):
        async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
            await asyncio.wait_for(interrupted.wait(), 10)
            return []

        def interrupt(self) -> None:
            interrupted.set()

    bench = Bench()

    async def join() -> MemorySource:
        bench.stop.set()
        await asyncio.sleep(0)
        return Quiet(())

    bench.delivery._join = join
    await bench.delivery.run(bench.stop)
    assert interrupted.is_set()


async def test_an_outage_of_the_provider_costs_no_message() -> None:
    """15.3: however often it fails, nothing is dead-lettered; all go out when it is back."""
    bench = Bench(*(record(user, str(user)) for user in range(20)))
    away = True

    async def send(message: Any) -> Any:
        if away:
            raise Unavailable("away")
        return await ScriptedProvider.send(bench.provider, message)

    bench.provider.send = send  # type: ignore[method-assign]
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: not bench.delivery._providers.is_available)
    for _ in range(20):
        await asyncio.sleep(0.002)
    away = False
    await eventually(lambda: len(bench.sent) == 20)
    await asyncio.wait_for(bench.source.drained.wait(), 10)
    await bench.end(running)
    assert not bench.store.letters
    assert not bench.store.parked


async def test_only_a_verdict_makes_a_dead_letter_and_the_next_goes_on() -> None:
    bench = Bench(record(1, "never"), record(1, "fine"), record(2, "away"))
    bench.provider.script["never"] = [Rejected("wrong number")]
    bench.provider.script["away"] = [Unavailable() for _ in range(2)]
    await bench.run()
    assert sorted(bench.sent) == ["away", "fine"]
    (letter,) = bench.store.letters
    assert (letter.message_id, letter.reason, letter.attempts) == ("never", "wrong number", 1)
    assert bench.store.outcomes["never"].status is Status.FAILED
    (copy,) = bench.log.records
    assert copy.topic == "t-dlt"
    assert json.loads(copy.value) == {"value": letter.value, "reason": "wrong number", "attempts": 1}


@pytest.mark.parametrize(
    "mistake",
    [
        Accepted(4711),  # type: ignore[arg-type]
        Accepted("p-a", segments="two"),  # type: ignore[arg-type]
        Rejected(404),  # type: ignore[arg-type]
        asyncio.CancelledError(),
        type("Timeout", (BaseException,), {})(),
    ],
    ids=lambda mistake: type(mistake).__name__,
)
async def test_a_providers_mistake_neither_ends_the_sender_nor_doubles_a_message(mistake: Any) -> None:
    """An id that is a number, a library's own cancellation, an error that is no Exception."""
    bench = Bench(record(1, "a"), record(1, "b"), record(2, "c"))
    bench.provider.script["a"] = [mistake]
    await bench.run()
    assert {"b", "c"} <= set(bench.sent)
    assert bench.provider.calls.count("a") == 1
    outcome = bench.store.outcomes["a"]
    expected = {Rejected: Status.FAILED, Accepted: Status.SENT}.get(type(mistake), Status.UNKNOWN)
    assert outcome.status is expected
    assert outcome.provider_id in (None, "4711", "p-a")
    assert outcome.segments is None


async def test_a_recipient_who_opted_out_at_the_provider_is_entered() -> None:
    """As Twilio's error 21610 says."""
    bench = Bench(record(1, "a", to="+491701234567"))
    bench.provider.script["a"] = [Rejected("error 21610", opted_out=True)]
    await bench.run()
    assert bench.store.optouts == {"+491701234567": "scripted: error 21610"}
    outcome = bench.store.outcomes["a"]
    assert (outcome.status, outcome.reason) == (Status.FAILED, "opted out")
    assert not bench.store.letters


async def test_a_message_that_was_perhaps_taken_goes_to_nobody_else_after_a_pause() -> None:
    """Its provider is kept with it, and its expiry says that its outcome is unknown."""
    past = time.time_ns() // 1_000_000 - 1
    bench = Bench(record(1, "a"), record(2, "b", expiresAt=past), on_unknown=OnUnknown.RESEND)
    bench.provider.script["a"] = [Unknown("no answer") for _ in range(3)]
    bench.store.parkings["b"] = Parking(2, "scripted")
    await bench.run()
    assert bench.store.parkings["a"] == Parking(3, "scripted")
    assert [json.loads(parked.value)["messageId"] for parked, _ in bench.store.parked] == ["a"]
    assert bench.store.outcomes["b"].status is Status.UNKNOWN
    assert bench.store.letters[0].reason.startswith("unknown: expired")
    again = Bench(record(1, "a"), after=bench)
    again.provider.script["a"] = [Rejected("wrong number")]
    await again.run()
    assert again.store.outcomes["a"].status is Status.UNKNOWN
    assert again.store.outcomes["a"].reason == "refused after an unknown attempt: wrong number"


async def test_an_expired_message_is_not_sent() -> None:
    past = time.time_ns() // 1_000_000 - 1
    bench = Bench(record(1, "old", expiresAt=past), record(1, "new", expiresAt=past + 60_000))
    await bench.run()
    assert bench.provider.calls == ["new"]
    assert bench.store.outcomes["old"].status is Status.EXPIRED
    assert [letter.message_id for letter in bench.store.letters] == ["old"]


async def test_a_message_waits_for_a_provider_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time_ns() // 1_000_000
    bench = Bench(record(1, "a", expiresAt=began + 3_600_000), attempts=1_000_000)
    bench.provider.script["a"] = [Unavailable("busy") for _ in range(2_000)]
    monkeypatch.setattr(delivery, "_host_ms", lambda: began + 7_200_000 * (len(bench.provider.calls) >= 5))
    await bench.run()
    assert len(bench.provider.calls) == 5
    assert bench.store.outcomes["a"].status is Status.EXPIRED
    assert bench.store.letters[0].reason == "expired; scripted: busy"


async def test_a_message_expires_behind_one_that_waits_for_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time_ns() // 1_000_000
    bench = Bench(record(1, "head", expiresAt=began + 86_400_000), record(1, "short", expiresAt=began + 3_600_000))
    bench.provider.script["head"] = [Unavailable("busy", retry_after=60, throttled=True) for _ in range(2_000)]
    host_ms = delivery._host_ms
    monkeypatch.setattr(delivery, "_host_ms", lambda: host_ms() + 3_599_900 * bool(bench.provider.calls))
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: "short" in bench.store.outcomes, within=10)
    await bench.end(running)
    assert bench.store.outcomes["short"].status is Status.EXPIRED
    assert "head" not in bench.store.outcomes
    assert set(bench.provider.calls) == {"head"}
    assert [json.loads(entry.record.value)["messageId"] for entry in bench.source.committed] == ["short"]


async def test_claims_are_renewed_while_the_provider_is_slow() -> None:
    """15.1: a lease lives as long as its work."""
    bench = Bench(record(1, "a"), lease_seconds=0.03, timeout=0.3)
    bench.provider.hangs = {1}
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: bench.store.renewals > 3)
    # And the log is polled all the while.
    assert bench.source.receives > 3
    bench.provider.hangs = set()
    running.cancel()
    await asyncio.wait([running])


async def test_a_message_that_another_sender_has_is_left_to_it() -> None:
    bench = Bench(record(1, "a"), record(2, "b"))
    bench.store.owners["a"] = "another"
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: bench.sent == ["b"])
    bench.store.outcomes["a"] = DeliveryOutcome("a", Status.SENT, 1)
    await asyncio.wait_for(bench.source.drained.wait(), 10)
    await bench.end(running)
    assert bench.sent == ["b"]


async def test_a_record_that_went_to_another_member_is_neither_sent_nor_committed() -> None:
    bench = Bench(record(1, "a"), record(1, "b"))
    bench.source.lost = {0}
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: bench.sent == ["b"])
    await bench.end(running)
    assert [position.position for position in bench.source.committed] == [1]


async def test_urgent_messages_go_first() -> None:
    bulk = [record(user, f"bulk{user}", priority="low") for user in range(20)]
    bench = Bench(*bulk, record(99, "code", priority="high"), concurrency=1)
    await bench.run()
    assert bench.sent.index("code") <= 2
    assert bench.provider.sent[0].id != "code"


async def test_one_who_opted_out_is_sent_nothing() -> None:
    bench = Bench(record(1, "a"))
    bench.store.opted_out = {"a"}
    await bench.run()
    assert bench.provider.calls == []
    assert bench.store.outcomes["a"].reason == "opted out"
    assert not bench.store.letters


async def test_quiet_hours_go_by_the_recipients_clock_and_spare_what_is_urgent() -> None:
    local = time.gmtime()
    begin, end = f"{local.tm_hour:02d}:00", f"{(local.tm_hour + 2) % 24:02d}:00"
    hours = QuietHours(f"{begin}-{end}")
    bench = Bench(record(1, "code", priority="high"), record(1, "bulk"), record(1, "more"), quiet_hours=hours)
    bench.store.recipient = Recipient(zone="UTC")
    await bench.run()
    assert bench.sent == ["code"]
    assert [json.loads(each.value)["messageId"] for each, _ in bench.store.parked] == ["bulk", "more"]
    awake = Bench(record(1, "bulk"), quiet_hours=hours)
    awake.store.recipient = Recipient(zone="Etc/GMT-8")
    await awake.run()
    assert awake.sent == ["bulk"]


@pytest.mark.parametrize(("to", "sent"), [("+491701234567", []), ("+61412345678", ["bulk"]), (None, ["bulk"])])
async def test_quiet_hours_go_by_the_zone_of_the_number_that_gets_the_message(to: str | None, sent: list[str]) -> None:
    """The user's own zone is that of the user's own number."""
    berlin = datetime.now(ZoneInfo("Europe/Berlin")).hour
    hours = QuietHours(f"{berlin:02d}:00-{(berlin + 2) % 24:02d}:00")
    bench = Bench(record(1, "bulk", to=to), quiet_hours=hours)
    bench.store.recipient = Recipient("+61498765432", zone="Australia/Sydney")
    await bench.run()
    assert bench.sent == sent


async def test_what_can_not_be_read_is_dead_lettered_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Record("t", "7", "rubbish"), record(1, "fine"))
    await bench.run()
    assert bench.sent == ["fine"]
    assert [letter.value for letter in bench.store.letters] == ["rubbish"]
    dead_lettered = [entry.__dict__ for entry in caplog.records if "dead-lettered" in entry.getMessage()]
    assert [(entry["user_id"], entry.get("message_id")) for entry in dead_lettered] == [("7", None)]


async def test_a_dead_letter_that_its_topic_does_not_take_is_kept_all_the_same() -> None:
    bench = Bench(Record("t", "7", "rubbish"))
    bench.log.down = BrokerUnavailable()
    await bench.run()
    assert len(bench.store.letters) == 1


async def test_a_store_that_is_away_for_a_while_loses_and_doubles_nothing() -> None:
    bench = Bench(record(1, "a"), record(2, "b"))
    bench.source.failures = 3
    bench.store.failures = 5
    await bench.run()
    assert sorted(bench.sent) == ["a", "b"]


async def test_on_stop_it_commits_what_is_done_and_gives_back_the_rest() -> None:
    bench = Bench(record(1, "fails"), record(1, "behind"), record(2, "fine"), attempts=20_000)
    bench.provider.script["fails"] = [Unavailable() for _ in range(20_000)]
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: bench.sent and len(bench.provider.calls) > 3)
    await bench.end(running)
    assert [received.record.key for received in bench.source.committed] == ["2"]
    assert set(bench.store.outcomes) == {"fine"}
    assert "fails" not in bench.store.owners
    assert not bench.store.letters


async def test_texts_and_numbers_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    bench = Bench(*(record(n, name, to="+491701234567") for n, name in enumerate(("secret", "never", "odd"))))
    bench.provider.script["never"] = [Rejected("wrong number")]
    bench.provider.script["odd"] = [KeyError("oops")]
    await bench.run()
    assert "msecret" not in caplog.text
    assert "+491701234567" not in caplog.text
    assert "msecret" not in repr(bench.provider.sent)
    assert bench.provider.sent[0].to == "+491701234567"
