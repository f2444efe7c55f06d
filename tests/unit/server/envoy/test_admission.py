"""The descriptors of one request, decided together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from paceline.errors import StoreUnavailable
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision, FixedWindow, Plan, TokenBucket
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.server.envoy.admission import Descriptor, DescriptorLimiter, Outcome, is_over
from paceline.server.envoy.config_file import EnvoyConfig
from paceline.server.envoy.descriptors import Unit
from paceline.server.envoy.plans import MAX_OVERRIDES, EnvoyPlans
from paceline.testing.clock import FakeClock

RULES = """
domain: d
descriptors:
  - key: user
    rate_limit: {name: user, unit: minute, requests_per_unit: 3}
  - key: route
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: banned
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: banned_softly
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: vip
    rate_limit: {replaces: [{name: user}], unit: minute, requests_per_unit: 10}
  - key: quota_a
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: quota_b
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: tokens
    rate_limit: {unit: day, requests_per_unit: 100}
"""


class Stored:
    """Plans as the database has them."""

    def __init__(self) -> None:
        self.plans: Mapping[str, Plan] = {}

    async def load(self) -> Mapping[str, Plan]:
        return self.plans


class Envoy:
    """Asks as Envoy would."""

    def __init__(self, limiter: AsyncLimiter, plans: EnvoyPlans, stored: Stored, clock: FakeClock) -> None:
        self.limiter, self.plans, self.stored, self.clock = limiter, plans, stored, clock
        self._decider = DescriptorLimiter(limiter, plans)

    async def ask(self, *descriptors: Descriptor | str) -> Outcome:
        return await self._decider.decide(
            "d", [of(descriptor) if isinstance(descriptor, str) else descriptor for descriptor in descriptors]
        )

    async def codes(self, *descriptors: Descriptor | str) -> tuple[bool, list[bool]]:
        """Whether it passes, and which descriptors are over."""
        outcome = await self.ask(*descriptors)
        return outcome.allowed, [is_over(status) for status in outcome.statuses]

    async def left(self, descriptor: str) -> int:
        outcome = await self.ask(of(descriptor)._replace(hits=0))
        return outcome.statuses[0].remaining

    async def store(self, *plans: Plan) -> None:
        self.stored.plans = {plan.name: plan for plan in plans}
        await self.limiter.refresh()


def of(text: str, hits: int = 1, reported: bool = False) -> Descriptor:
    """`user=bob,route=x` as a descriptor."""
    return Descriptor(
        [(key, value) for key, _, value in (entry.partition("=") for entry in text.split(","))], hits, reported
    )


@asynccontextmanager
async def opened(tmp_path: Path, store: object = None, text: str = RULES, **options: str) -> AsyncIterator[Envoy]:
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    clock, stored = FakeClock(datetime(2026, 1, 1, tzinfo=UTC)), Stored()
    plans = EnvoyPlans(stored, EnvoyConfig(file))
    kept = store or AsyncMemoryLimitStore(MemoryLimitStore(clock=clock))
    async with AsyncLimiter(kept, plans=plans, clock=clock, **options) as limiter:  # type: ignore[arg-type]
        await limiter.refresh()
        yield Envoy(limiter, plans, stored, clock)


@pytest.fixture
async def envoy(tmp_path: Path) -> AsyncIterator[Envoy]:
    async with opened(tmp_path) as asked:
        yield asked


async def test_a_descriptor_has_its_limit(envoy: Envoy) -> None:
    seen = [await envoy.ask("user=bob") for _ in range(4)]
    assert [outcome.allowed for outcome in seen] == [True, True, True, False]
    assert [outcome.statuses[0].remaining for outcome in seen] == [2, 1, 0, 0]
    assert seen[3].statuses[0].reset_after_us == 60_000_000
    assert (await envoy.ask("user=eve")).allowed
    envoy.clock.advance(60)
    assert (await envoy.ask("user=bob")).allowed


async def test_what_no_rule_covers_passes(envoy: Envoy) -> None:
    assert await envoy.codes("other=x") == (True, [False])
    assert await envoy.codes("user=bob,more=x") == (True, [False])


async def test_a_denial_charges_nothing_anywhere(envoy: Envoy) -> None:
    for _ in range(3):
        await envoy.ask("user=bob")
    assert await envoy.codes("route=/", "user=bob") == (False, [False, True])
    assert await envoy.left("route=/") == 5


async def test_two_descriptors_of_one_count_are_charged_together(envoy: Envoy) -> None:
    assert await envoy.codes("user=bob", "user=bob") == (True, [False, False])
    assert await envoy.left("user=bob") == 1
    assert await envoy.codes("user=bob", "user=bob") == (False, [True, True])
    assert await envoy.left("user=bob") == 1


async def test_a_limit_of_zero_refuses_and_charges_nothing(envoy: Envoy) -> None:
    assert await envoy.codes("banned=x") == (False, [True])
    assert await envoy.codes("user=bob", "banned=x") == (False, [False, True])
    assert await envoy.left("user=bob") == 3


async def test_a_limit_of_zero_in_shadow_refuses_nothing(envoy: Envoy) -> None:
    assert await envoy.codes("banned_softly=x", "user=bob") == (True, [False, False])
    assert await envoy.left("user=bob") == 2


async def test_unlimited(envoy: Envoy) -> None:
    outcome = await envoy.ask("free=x")
    assert outcome.allowed
    assert outcome.decision is None
    assert outcome.statuses[0].match is not None


async def test_shadow_decides_and_never_refuses(envoy: Envoy) -> None:
    assert [await envoy.codes("soft=x") for _ in range(3)] == [(True, [False])] * 3
    assert envoy.limiter.shadow_denials == {"d.soft": 2}
    assert [status.allowed for status in (await envoy.ask("soft=x", "user=bob")).statuses] == [False, True]


async def test_a_replaced_limit_is_not_charged(envoy: Envoy) -> None:
    for _ in range(5):
        assert (await envoy.ask("user=bob", "vip=bob")).allowed
    assert await envoy.left("user=bob") == 3
    assert await envoy.left("vip=bob") == 5


# -- hits --------------------------------------------------------------------------------------------------------------


async def test_hits_are_the_cost(envoy: Envoy) -> None:
    assert await envoy.codes(of("route=/", 4)) == (True, [False])
    assert await envoy.codes(of("route=/", 2)) == (False, [True])
    assert await envoy.codes(of("route=/", 1)) == (True, [False])


@pytest.mark.parametrize("hits", [6, 2**32 - 1, 2**64 - 1])
async def test_more_hits_than_the_limit_never_pass_and_charge_nothing(envoy: Envoy, hits: int) -> None:
    outcome = await envoy.ask(of("route=/", hits), "user=bob")
    assert not outcome.allowed
    assert [is_over(status) for status in outcome.statuses] == [True, False]
    assert await envoy.left("route=/") == 5
    assert await envoy.left("user=bob") == 3


async def test_no_hits_ask_whether_there_is_room(envoy: Envoy) -> None:
    ask = of("user=bob", 0)
    assert [await envoy.codes(ask) for _ in range(5)] == [(True, [False])] * 5
    for _ in range(3):
        await envoy.ask("user=bob")
    assert await envoy.codes(ask) == (False, [True])
    assert await envoy.codes("route=/", ask) == (False, [False, True])
    assert await envoy.left("route=/") == 5


@pytest.mark.parametrize("hits", [20, 100, 101, 2**64 - 1])
async def test_reported_hits_count_even_if_there_is_no_room_for_all(envoy: Envoy, hits: int) -> None:
    """Envoy reports the tokens of an answer when the answer is out: a budget must not stay open for ever."""
    await envoy.ask(of("tokens=bob", 90, reported=True))
    assert await envoy.codes(of("tokens=bob", hits, reported=True)) == (False, [True])
    assert await envoy.left("tokens=bob") == 0
    assert await envoy.codes(of("tokens=bob", 0)) == (False, [True])


# -- quotas ------------------------------------------------------------------------------------------------------------


async def test_quotas_refuse_only_together(envoy: Envoy) -> None:
    both = ("quota_a=x", "quota_b=x")
    assert await envoy.codes(*both) == (True, [False, False])
    assert await envoy.codes(*both) == (True, [True, False])
    assert await envoy.codes(*both) == (False, [True, True])
    assert await envoy.codes("quota_a=x") == (False, [True])


async def test_a_request_that_quotas_refuse_charges_nothing(envoy: Envoy) -> None:
    await envoy.ask("quota_a=x")
    assert not (await envoy.ask("quota_a=x", "user=bob")).allowed
    assert await envoy.left("user=bob") == 3


# -- plans -------------------------------------------------------------------------------------------------------------


async def test_a_stored_plan_takes_a_rules_place_at_once(envoy: Envoy) -> None:
    await envoy.ask("user=bob")
    await envoy.store(Plan("d.user", FixedWindow(100, "PT1M")))
    assert await envoy.left("user=bob") == 99
    await envoy.store(Plan("d.user", TokenBucket(2, 1)))
    assert await envoy.codes(of("user=bob", 2)) == (True, [False])
    assert await envoy.codes("user=bob") == (False, [True])
    envoy.clock.advance(1)
    assert await envoy.codes("user=bob") == (True, [False])
    await envoy.store()
    assert await envoy.left("user=eve") == 3


async def test_a_stored_plan_limits_what_was_banned_or_unlimited(envoy: Envoy) -> None:
    await envoy.store(Plan("d.banned", FixedWindow(1, "PT1M")), Plan("d.free", FixedWindow(1, "PT1M")))
    for name in ("banned=x", "free=x"):
        assert [await envoy.codes(name) for _ in range(2)] == [(True, [False]), (False, [True])]


async def test_a_stored_plan_in_shadow_refuses_nothing(envoy: Envoy) -> None:
    await envoy.store(Plan("d.user", FixedWindow(1, "PT1M"), shadow=True))
    assert [await envoy.codes("user=bob") for _ in range(3)] == [(True, [False])] * 3


async def test_one_key_may_have_a_limit_of_its_own(envoy: Envoy) -> None:
    await envoy.store(Plan("d.user", FixedWindow(1, "PT1M"), overrides={"{d}:user=bob": FixedWindow(2, "PT1M")}))
    assert [(await envoy.ask("user=bob")).allowed for _ in range(3)] == [True, True, False]
    assert [(await envoy.ask("user=eve")).allowed for _ in range(2)] == [True, False]


async def test_the_file_changes_while_it_is_used(envoy: Envoy, tmp_path: Path) -> None:
    for _ in range(3):
        await envoy.ask("user=bob")
    (tmp_path / "limits.yaml").write_text(RULES.replace("requests_per_unit: 3}", "requests_per_unit: 4}"))
    await envoy.limiter.refresh()
    assert [(await envoy.ask("user=bob")).allowed for _ in range(2)] == [True, False]
    (tmp_path / "limits.yaml").write_text("domain: d")
    await envoy.limiter.refresh()
    assert (await envoy.ask("user=bob")).allowed


async def test_a_plan_that_is_deleted_meanwhile_limits_nothing(envoy: Envoy) -> None:
    await envoy.store(Plan("e.user", FixedWindow(1, "PT1M")))
    decider = DescriptorLimiter(envoy.limiter, envoy.plans)
    assert (await decider.decide("e", [of("user=bob")])).allowed
    assert not (await decider.decide("e", [of("user=bob")])).allowed
    envoy.stored.plans = {}
    envoy.limiter.replace_plans([])  # as if another refresh came between the match and the decision
    assert (await decider.decide("e", [of("user=bob")])).allowed


# -- limits that descriptors bring -------------------------------------------------------------------------------------


async def test_a_descriptor_brings_its_limit(envoy: Envoy) -> None:
    ask = of("user=bob")._replace(override=(1, Unit.HOUR))
    assert [await envoy.codes(ask) for _ in range(2)] == [(True, [False]), (False, [True])]
    assert await envoy.left("user=bob") == 3
    none = of("user=bob")._replace(override=(0, Unit.HOUR))
    assert await envoy.codes(none) == (False, [True])


async def test_a_descriptor_whose_own_limit_changes_is_not_admitted_anew(envoy: Envoy) -> None:
    """Limits of 2, 3 and 4 an hour in turn: no more than 4 pass in the hour, whatever the order."""
    asks = [of("user=eve")._replace(override=(limit, Unit.HOUR)) for limit in (2, 3, 4)]
    passed = [(await envoy.ask(asks[number % 3])).allowed for number in range(12)]
    assert passed == [True, True, True, False, False, True] + [False] * 6
    assert (await envoy.ask(of("user=eve")._replace(override=(2, Unit.MINUTE)))).allowed, "another unit counts apart"


async def test_a_request_may_bring_two_limits_for_one_count(envoy: Envoy) -> None:
    asks = [of("user=eve")._replace(override=(limit, Unit.HOUR)) for limit in (2, 3)]
    assert await envoy.codes(*asks) == (True, [False, False])
    assert await envoy.codes(*asks) == (False, [True, True])


async def test_limits_that_descriptors_bring_are_bounded(envoy: Envoy) -> None:
    for number in range(1, MAX_OVERRIDES + 5):
        envoy.plans.add_override(
            (await envoy.ask(of("route=/")._replace(override=(1, Unit.HOUR))))
            .statuses[0]
            .match._replace(plan=f"p{number}")  # type: ignore[union-attr]
        )
    await envoy.limiter.refresh()
    assert len(envoy.limiter.plans) <= MAX_OVERRIDES + 10
    assert not (await envoy.ask(of("route=/")._replace(override=(1, Unit.HOUR)))).allowed


# -- a store that is down ----------------------------------------------------------------------------------------------


class AwayStore(AsyncMemoryLimitStore):
    in_process = False

    async def decide(self, *arguments: object, **options: object) -> Decision:
        raise StoreUnavailable("away")


@pytest.mark.parametrize(("policy", "passes"), [("open", True), ("closed", False), ("fallback", True)])
async def test_an_outage_is_decided_by_policy(tmp_path: Path, policy: str, passes: bool) -> None:
    async with opened(tmp_path, AwayStore(), on_error=policy) as envoy:
        assert (await envoy.ask("user=bob")).allowed is passes
        outcome = await envoy.ask("user=bob", "route=/")
        assert outcome.allowed is passes
        assert any(is_over(status) for status in outcome.statuses) is not passes
        assert (await envoy.ask(of("user=bob", 50))).allowed is False
