"""The Prometheus observer, on real limiters."""

from __future__ import annotations

from collections import Counter
from typing import cast

from prometheus_client import CollectorRegistry

from paceline import BreakerPolicy, LeasePolicy, Plan, TokenBucket
from paceline.limits.model import Decision
from paceline.server.metrics.limits import MAX_PLANS, AdmissionMetrics
from paceline.server.rollups.observers import LimitRollups, with_rollups
from paceline.server.rollups.recorder import Recorder
from tests.unit.limits.both import World

PLANS = [
    Plan("gold", TokenBucket(2, 1)),
    Plan("dark", TokenBucket(1, 1), shadow=True),
    Plan("big", TokenBucket(100, 1)),
]


async def test_decisions_outages_and_leases_are_counted(world: World) -> None:
    registry = CollectorRegistry()
    metrics = AdmissionMetrics(registry)
    limiter = world.limiter(plans=PLANS, observer=metrics, breaker=BreakerPolicy(failures=1))
    for _ in range(3):
        await limiter.acquire("u", ["gold", "dark"])

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("rate_limiter_degraded_decisions_total", plan="gold") == 0, "there before it counts"
    assert value("rate_limiter_store_failures_total", operation="decide") == 0
    world.store.down = True
    await limiter.acquire("u", "gold")

    assert value("rate_limiter_decisions_total", plan="gold", outcome="OK") == 2
    assert value("rate_limiter_decisions_total", plan="gold", outcome="DENIED") == 1
    assert value("rate_limiter_decisions_total", plan="gold", outcome="FAIL_OPEN") == 1
    assert value("rate_limiter_shadow_denials_total", plan="dark") == 2
    assert value("rate_limiter_degraded_decisions_total", plan="gold") == 1
    assert value("rate_limiter_store_duration_seconds_count", operation="decide") == 4
    assert value("rate_limiter_store_failures_total", operation="decide") == 1
    assert value("rate_limiter_breaker_state", state="open") == 1
    assert value("rate_limiter_breaker_state", state="closed") == 0

    world.store.down = False
    leasing = world.limiter(plans=PLANS, observer=metrics, lease=LeasePolicy())
    for _ in range(5):
        await leasing.acquire("u", "big")
    assert (value("rate_limiter_lease_size_count", plan="big") or 0) > 0
    await leasing.close()


async def test_a_batch_counts_as_its_decisions_would(world: World) -> None:
    """With an outage in the middle, by the metrics and by the rollups beside them."""
    counts = []
    for together in (True, False):
        registry, recorder = CollectorRegistry(), _Recorder()
        observer = with_rollups(AdmissionMetrics(registry), LimitRollups(cast(Recorder, recorder)))
        limiter = world.limiter(plans=PLANS, observer=observer, breaker=BreakerPolicy(failures=100))
        requests = [(f"u{n % 2}-{together}", ["gold", "dark"]) for n in range(6)]
        for down in (False, True):
            world.store.down = down
            if together:
                await limiter.acquire_many(requests)
            else:
                for key, plans in requests:
                    await limiter.acquire(key, plans)
        world.store.down = False
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        counted = {
            (sample.name, *sample.labels.values()): sample.value
            for sample in samples
            if sample.name.endswith("_total") and "store" not in sample.name
        }
        counts.append((counted, recorder.counts))
    assert counts[0] == counts[1]
    assert counts[0][1] == {("limits.allowed", "gold"): 10, ("limits.denied", "gold"): 2}


class _Recorder:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, series: str, label: str, count: int = 1) -> None:
        self.counts[series, label] += count


def test_a_known_plan_stands_at_zero() -> None:
    registry = CollectorRegistry()
    AdmissionMetrics(registry).known(["gold"])
    assert registry.get_sample_value("rate_limiter_degraded_decisions_total", {"plan": "gold"}) == 0


def test_plan_names_can_not_fill_the_registry() -> None:
    registry = CollectorRegistry()
    metrics = AdmissionMetrics(registry)
    for number in range(MAX_PLANS + 100):
        metrics.decided(Decision.of(True, 1, 1, 0, 0, f"plan-{number}"))
    assert registry.get_sample_value("rate_limiter_decisions_total", {"plan": "(other)", "outcome": "OK"}) == 100
