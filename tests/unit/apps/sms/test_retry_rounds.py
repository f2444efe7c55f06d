"""A message that fails by itself is put aside for longer and longer. It is given up only if the provider's own code
fails at it, time after time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline.testing import eventually
from paceline_sms.ports import Status
from paceline_sms.provider import Accepted, SmsMessage, Unavailable
from paceline_sms.provider_chain import NamedProvider, ProviderChain, ProviderFault
from paceline_sms.retry_rounds import Round, retry_at_ms
from tests.unit.apps.sms.fakes import ScriptedProvider
from tests.unit.apps.sms.test_delivery import Bench, record

NOW = 1_000_000_000
FAULT = "scripted: the provider failed: KeyError"


async def rounds_of(bench: Bench, others: int) -> int:
    """Runs what is put aside again, beside messages of another user, until nothing is put aside; how often that was."""
    for rounds in range(20):
        await bench.run()
        parked, bench.store.parked = bench.store.parked, []
        if not parked:
            return rounds + 1
        beside = (record(9, f"o{rounds}-{number}") for number in range(others))
        bench = Bench(*(each for each, _ in parked), *beside, after=bench)
    raise AssertionError("it is put aside for ever")


@pytest.mark.parametrize(("others", "rounds"), [(20, 3), (0, 8)])
async def test_a_message_at_which_the_provider_itself_fails_is_given_up_and_its_lane_goes_on(
    others: int, rounds: int
) -> None:
    """15.3: that is a property of the message, sooner if others go out meanwhile."""
    bench = Bench(record(1, "odd"), record(1, "next"), *(record(9, f"first-{number}") for number in range(others)))
    send = bench.provider.send

    async def fail_late(message: SmsMessage) -> Any:
        if message.id != "odd":
            return await send(message)
        for _ in range(50):  # turns of the event loop, in which others go out
            await asyncio.sleep(0)
        raise KeyError("a mistake of the provider")

    bench.provider.send = fail_late  # type: ignore[method-assign]
    assert await rounds_of(bench, others) == rounds
    assert bench.sent[-1] == "next"
    (letter,) = bench.store.letters
    assert (letter.message_id, letter.reason, letter.attempts) == ("odd", FAULT, 3 * rounds)
    assert letter.whole
    assert bench.store.outcomes["odd"].status is Status.FAILED


async def test_a_provider_that_fails_at_every_message_is_away() -> None:
    bench = Bench(*(record(user, str(user)) for user in range(20)))
    is_broken = True

    async def send(message: SmsMessage) -> Any:
        if is_broken:
            raise KeyError("at every message")
        return await ScriptedProvider.send(bench.provider, message)

    bench.provider.send = send  # type: ignore[method-assign]
    running = asyncio.create_task(bench.delivery.run(bench.stop))
    await eventually(lambda: not bench.delivery._providers.is_available)
    for _ in range(20):
        await asyncio.sleep(0.002)
    is_broken = False
    await asyncio.wait_for(bench.source.drained.wait(), 10)
    await bench.end(running)
    assert not bench.store.letters
    assert len(bench.sent) == 20


async def test_a_message_waits_for_the_providers_rate_however_often_it_is_refused() -> None:
    """The provider works: that costs the message no attempt, and it is not put aside."""
    bench = Bench(record(1, "a"), *(record(2, f"b{number}") for number in range(5)))
    bench.provider.script["a"] = [Unavailable("busy", throttled=True) for _ in range(10)]
    await bench.run()
    assert not bench.store.parked
    assert bench.store.outcomes["a"].attempts == 1


@pytest.mark.parametrize(
    ("failures", "kind", "throttled"),
    [
        ([KeyError(), KeyError()], ProviderFault, False),
        ([KeyError(), Unavailable()], Unavailable, False),
        ([Unavailable(), KeyError()], Unavailable, False),
        ([KeyError(), Unavailable(throttled=True)], Unavailable, True),
        ([Unavailable(throttled=True), Unavailable()], Unavailable, True),
    ],
)
async def test_a_failure_is_a_fault_only_if_no_provider_can_take_the_message_later(
    failures: list[Exception], kind: type[Unavailable], throttled: bool
) -> None:
    providers = [ScriptedProvider() for _ in failures]
    for provider, failure in zip(providers, failures, strict=True):
        provider.script["a"] = [failure]
    chain = ProviderChain([NamedProvider(f"p{number}", provider) for number, provider in enumerate(providers)])
    message = SmsMessage("a", None, "text", 1, 1, deadline=None, user_id=1)  # type: ignore[arg-type]
    with pytest.raises(Unavailable) as raised:
        await chain.send(message)
    assert type(raised.value) is kind
    assert raised.value.throttled is throttled
    assert isinstance((await chain.send(message)).result, Accepted)
    assert chain.accepted == 1


def test_each_round_is_followed_by_a_longer_pause_and_none_outlasts_the_message() -> None:
    pauses = [retry_at_ms(Round(number), NOW, None) for number in range(1, 8)]
    assert [at and (at - NOW) // 1000 for at in pauses] == [30, 60, 120, 240, 480, 600, 600]
    assert retry_at_ms(Round(3), NOW, NOW + 7_000) == NOW + 7_000
    assert retry_at_ms(Round(10_000), NOW, None) == NOW + 600_000


@pytest.mark.parametrize(
    ("last", "is_given_up"),
    [
        (Round(2, is_fault=True, others_accepted=True), False),
        (Round(3, is_fault=True, others_accepted=True), True),
        (Round(7, is_fault=True), False),
        (Round(8, is_fault=True), True),
        (Round(1000, others_accepted=True), False),
    ],
)
def test_only_faults_are_given_up(last: Round, is_given_up: bool) -> None:
    assert (retry_at_ms(last, NOW, None) is None) is is_given_up
