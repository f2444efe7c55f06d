"""One attempt at a message: what follows each answer of a provider."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from paceline.dispatch.current_task import CurrentTask, enter_task
from paceline.dispatch.downstream_turn import DownstreamTurn
from paceline.dispatch.model import Claim, GiveUp, Postponed
from paceline.dispatch.outcomes import OutcomeUnknown, Retry
from paceline.dispatch.ports import OutcomeSink
from paceline_sms import Accepted, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.execution import MessageExecution
from paceline_sms.model import Message, Priority
from paceline_sms.ports import ANY, DeliveryOutcome, Facts, FactsRequest, NullObserver, Status
from paceline_sms.provider import OnUnknown
from paceline_sms.provider_chain import NamedProvider, ProviderChain, provider_downstream
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.recipients import NOBODY, Recipient

NOW = 1_800_000_000_000
Step = Accepted | Rejected | Unknown | BaseException | str


class Scripted:
    """Follows its script, one step per call; then accepts."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.sent: list[SmsMessage] = []

    async def send(self, message: SmsMessage) -> Any:
        self.sent.append(message)
        step: Step = self.steps.pop(0) if self.steps else Accepted("p-1")
        if isinstance(step, BaseException):
            raise step
        return step


class Store:
    """A `DeliveryStore` in memory, of one message."""

    def __init__(self) -> None:
        self.known = Facts(Status.QUEUED, NOW, NOW + 3_600_000, NOBODY)
        self.outcomes: list[DeliveryOutcome] = []
        self.notes: list[tuple[int, str | None]] = []
        self.opt_outs: dict[str, str] = {}
        self.asked: list[FactsRequest] = []

    async def facts(self, requests: Sequence[FactsRequest]) -> list[Facts]:
        self.asked += requests
        return [self.known] * len(requests)

    async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> list[str]:
        self.outcomes += outcomes
        return [outcome.message_id for outcome in outcomes] if self.known.status is Status.QUEUED else []

    def settle_within(self, within: Any, outcomes: Sequence[DeliveryOutcome]) -> None:
        self.outcomes += outcomes

    async def note(self, message_id: str, attempts: int, unknown_provider: str | None) -> None:
        self.notes.append((attempts, unknown_provider))
        self.known = self.known._replace(unknown_provider=unknown_provider or self.known.unknown_provider)

    async def opt_out(self, phone: str, reason: str) -> None:
        self.opt_outs[phone] = reason


class Counted(NullObserver):
    def __init__(self) -> None:
        self.deliveries: dict[str, int] = defaultdict(int)

    def delivered(self, outcome: str) -> None:
        self.deliveries[outcome] += 1


class Bench:
    """Providers by name, the first one preferred."""

    def __init__(self, on_unknown: OnUnknown = OnUnknown.HOLD, quiet: str | None = None, **providers: Scripted) -> None:
        self.store, self.observer, self.providers = Store(), Counted(), providers
        entries = [
            NamedProvider(name, provider, provider_downstream(name), on_unknown) for name, provider in providers.items()
        ]
        self.chain = ProviderChain(entries, timeout=5)
        hours = None if quiet is None else QuietHours(quiet)
        self.execution = MessageExecution(self.store, self.chain, observer=self.observer, quiet_hours=hours)

    async def run(self, message: Message | None = None, *, attempt: int = 1) -> None:
        message = message or MESSAGE
        turn = DownstreamTurn(self.execution.downstream)
        claim = Claim("SMS", message.message_id, 1, attempt - 1)
        current = CurrentTask(lambda: claim, cast(OutcomeSink, None), turn=turn, writes=True)
        enter_task(current)
        await turn.enter()
        try:
            await self.execution(message.message_id, DOCUMENT | {"priority": message.priority})
        finally:
            await turn.leave()
        for writing in current.writings:
            writing.write(None, [writing.record])

    @property
    def outcome(self) -> DeliveryOutcome:
        (outcome,) = self.store.outcomes
        return outcome


DOCUMENT = {"userId": 7, "message": "Hello", "messageId": "m-1", "to": "+491701234567"}
MESSAGE = Message.from_document(DOCUMENT)


async def test_what_is_accepted_is_sent() -> None:
    bench = Bench(own=Scripted(Accepted("p-7", 2)))
    await bench.run()
    assert (bench.outcome.status, bench.outcome.provider, bench.outcome.provider_id) == (Status.SENT, "own", "p-7")
    assert (bench.outcome.segments, bench.outcome.attempts) == (2, 1)
    (sent,) = bench.providers["own"].sent
    assert (sent.id, sent.to, sent.text, sent.attempt, sent.user_id) == ("m-1", "+491701234567", "Hello", 1, 7)


async def test_a_verdict_ends_a_message_and_an_opt_out_is_entered() -> None:
    bench = Bench(own=Scripted(Rejected("unknown number")))
    with pytest.raises(GiveUp, match="unknown number"):
        await bench.run()
    assert (bench.outcome.status, bench.outcome.reason) == (Status.FAILED, "unknown number")
    bench = Bench(own=Scripted(Rejected("unsubscribed", opted_out=True)))
    await bench.run()
    assert (bench.outcome.status, bench.outcome.reason) == (Status.FAILED, "opted out")
    assert bench.store.opt_outs == {"+491701234567": "own: unsubscribed"}


@pytest.mark.parametrize("status", [Status.SENT, Status.DELIVERED, Status.CANCELLED, Status.UNKNOWN])
async def test_what_has_an_outcome_is_not_sent(status: Status) -> None:
    """As after a crash between the outcome of a message and that of its item."""
    bench = Bench(own=Scripted())
    bench.store.known = bench.store.known._replace(status=status)
    await bench.run()
    assert (bench.providers["own"].sent, bench.store.outcomes) == ([], [])


async def test_what_is_too_late_or_opted_out_is_not_sent() -> None:
    bench = Bench(own=Scripted())
    bench.store.known = bench.store.known._replace(expires_ms=NOW)
    with pytest.raises(GiveUp) as late:
        await bench.run()
    assert late.value.verdict == Status.EXPIRED
    bench.store.known = bench.store.known._replace(expires_ms=None, opted_out=True)
    await bench.run()
    assert (bench.outcome.status, bench.providers["own"].sent) == (Status.FAILED, [])


@pytest.mark.parametrize("step", [Unknown("cut"), RuntimeError("a bug"), TimeoutError(), "no verdict at all"])
async def test_what_proves_nothing_is_held_and_sent_by_nobody_else(step: Step) -> None:
    bench = Bench(a=Scripted(step), b=Scripted())
    with pytest.raises(OutcomeUnknown):
        await bench.run()
    assert (bench.outcome.status, bench.outcome.provider) == (Status.UNKNOWN, "a")
    assert bench.providers["b"].sent == []


async def test_a_receipt_before_the_answer_decides() -> None:
    class Reported(Store):
        async def settle(self, outcomes: Sequence[DeliveryOutcome]) -> list[str]:
            return []

    bench = Bench(own=Scripted(Unknown("cut")))
    bench.execution = MessageExecution(Reported(), bench.chain)
    await bench.run()


async def test_another_provider_takes_only_what_the_first_has_certainly_not() -> None:
    bench = Bench(a=Scripted(Unavailable("away")), b=Scripted())
    await bench.run()
    assert (bench.outcome.status, bench.outcome.provider) == (Status.SENT, "b")
    bench = Bench(a=Scripted(Unavailable("away")), b=Scripted(Unavailable("away, too")))
    with pytest.raises(Retry, match="a: away"):
        await bench.run()
    assert (bench.store.outcomes, bench.store.notes) == ([], [(1, None)])


async def test_a_provider_that_is_busy_costs_no_attempt() -> None:
    bench = Bench(own=Scripted(Unavailable("slow down", throttled=True, retry_after=0.2)))
    with pytest.raises(Postponed) as busy:
        await bench.run()
    assert busy.value.pause == timedelta(seconds=0.2)
    assert bench.store.notes == []
    began = time.monotonic()
    await bench.run()
    assert time.monotonic() - began >= 0.1, "all senders obey the pause"


async def test_pauses_grow_and_end_when_the_message_expires() -> None:
    bench = Bench(own=Scripted(*(Unavailable("away") for _ in range(3))))
    bench.store.known = bench.store.known._replace(expires_ms=NOW + 3000)
    pauses = []
    for attempt in (1, 2, 20):
        with pytest.raises(Retry) as again:
            await bench.run(attempt=attempt)
        pauses.append(again.value.pause())
    assert pauses == [timedelta(seconds=0.5), timedelta(seconds=1), timedelta(seconds=3)]


async def test_resending_goes_to_the_same_provider_only_and_a_refusal_then_proves_nothing() -> None:
    bench = Bench(OnUnknown.RESEND, a=Scripted(Unavailable("away")), b=Scripted(Unknown("cut"), Rejected("twice")))
    with pytest.raises(Retry):
        await bench.run()
    assert bench.store.notes == [(1, "b")]
    with pytest.raises(OutcomeUnknown, match="refused after an unknown attempt: twice"):
        await bench.run(attempt=2)
    assert (len(bench.providers["a"].sent), len(bench.providers["b"].sent)) == (1, 2)
    assert bench.outcome.status is Status.UNKNOWN


async def test_what_died_with_its_sender_is_held_or_sent_again_by_the_only_provider() -> None:
    bench = Bench(own=Scripted())
    bench.store.known = bench.store.known._replace(unknown_provider=ANY)
    with pytest.raises(OutcomeUnknown, match="nobody knows which one"):
        await bench.run(attempt=2)
    assert bench.providers["own"].sent == []
    bench = Bench(OnUnknown.RESEND, own=Scripted(Rejected("twice")))
    bench.store.known = bench.store.known._replace(unknown_provider=ANY)
    with pytest.raises(GiveUp, match="unknown: refused after an unknown attempt") as held:
        await bench.run(attempt=2)
    assert held.value.verdict == Status.UNKNOWN


async def test_failing_is_a_choice() -> None:
    bench = Bench(OnUnknown.FAIL, own=Scripted(Unknown("cut")))
    with pytest.raises(GiveUp, match="unknown: cut"):
        await bench.run()
    assert bench.outcome.status is Status.FAILED


async def test_quiet_hours_postpone_what_is_not_urgent() -> None:
    at = time.gmtime(NOW / 1000)
    bench = Bench(quiet=f"{at.tm_hour:02}:00-{(at.tm_hour + 1) % 24:02}:00", own=Scripted())
    bench.store.known = bench.store.known._replace(recipient=Recipient("+491701234567", zone="UTC"))
    with pytest.raises(Postponed) as quiet:
        await bench.run()
    assert quiet.value.pause is not None
    assert timedelta(0) < quiet.value.pause <= timedelta(hours=1)
    await bench.run(replace(MESSAGE, priority=Priority.HIGH))
    assert bench.outcome.status is Status.SENT


async def test_what_can_not_be_read_is_a_dead_letter() -> None:
    bench = Bench(own=Scripted())
    enter_task(CurrentTask(lambda: Claim("SMS", "m-1", 1, 0), cast(OutcomeSink, None)))
    with pytest.raises(GiveUp, match="can't be read"):
        await bench.execution("m-1", {"userId": "seven"})
