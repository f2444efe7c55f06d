"""A message that fails by itself is put aside for longer and longer, and is never given up before it expires."""

from __future__ import annotations

from paceline_sms.provider import Unavailable
from paceline_sms.retry_rounds import retry_at_ms
from tests.unit.apps.sms.test_delivery import Bench, record

NOW = 1_000_000_000


async def test_a_message_waits_for_the_providers_rate_however_often_it_is_refused() -> None:
    """The provider works: that costs the message no attempt, and it is not put aside."""
    bench = Bench(record(1, "a"), *(record(2, f"b{number}") for number in range(5)))
    bench.provider.script["a"] = [Unavailable("busy", throttled=True) for _ in range(10)]
    await bench.run()
    assert not bench.store.parked
    assert bench.store.outcomes["a"].attempts == 1


def test_each_round_is_followed_by_a_longer_pause_and_none_outlasts_the_message() -> None:
    pauses = [retry_at_ms(number, NOW, None) for number in range(1, 8)]
    assert [(at - NOW) // 1000 for at in pauses] == [30, 60, 120, 240, 480, 600, 600]
    assert retry_at_ms(3, NOW, NOW + 7_000) == NOW + 7_000
    assert retry_at_ms(10_000, NOW, None) == NOW + 600_000
