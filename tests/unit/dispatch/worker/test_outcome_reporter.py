"""What a reporter remembers of the settings, for how long it stands by it, and how it closes."""

from __future__ import annotations

import asyncio

import pytest

from paceline.clock import uptime
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import NullObserver
from paceline.dispatch.status import Status
from paceline.dispatch.worker.cycle import DispatchCycle
from paceline.dispatch.worker.outcome_reporter import LOG_SECONDS, TRUSTED_SECONDS, OutcomeReporter
from paceline.errors import StoreUnavailable
from tests.unit.dispatch.local_bench import NO_DELAY, FlakyStore
from tests.unit.dispatch.local_bench import Bench as LocalBench


class Bench(NullObserver):
    def __init__(self) -> None:
        self.store = FlakyStore()
        self.now = 1000.0
        self.unread: list[str] = []
        self.reporter = OutcomeReporter(self.store, observer=self, clock=lambda: self.now)

    def switch_unread(self, item_type: str) -> None:
        self.unread.append(item_type)

    async def configure(self, **settings: object) -> None:
        await self.store.configure(DispatchConfig(item_type="WORK", retry_backoff_secs=0).changed(settings))


async def test_who_never_heard_of_the_switch_does_not_take_it_for_on() -> None:
    bench = Bench()
    await bench.configure()
    bench.store.away = True
    with pytest.raises(StoreUnavailable):
        await bench.reporter.enabled("WORK")
    bench.store.away = False
    assert await bench.reporter.enabled("WORK")


@pytest.mark.parametrize("enabled", [True, False])
async def test_the_last_word_on_the_switch_stands_for_less_than_a_second(enabled: bool) -> None:
    bench = Bench()
    await bench.configure(enabled=enabled)
    assert await bench.reporter.enabled("WORK") is enabled
    bench.store.away = True
    bench.now += TRUSTED_SECONDS * 0.99
    assert await bench.reporter.enabled("WORK") is enabled
    bench.now += TRUSTED_SECONDS * 0.02
    with pytest.raises(StoreUnavailable):
        await bench.reporter.enabled("WORK")


@pytest.mark.parametrize(("interval", "seconds"), [(5, 0.4), (1, 0.4), (0.2, 0.1)])
async def test_settings_are_cached_for_half_an_interval_and_less_than_a_second(interval: float, seconds: float) -> None:
    bench = Bench()
    await bench.configure(dispatch_interval_secs=interval)
    assert await bench.reporter.enabled("WORK")
    await bench.configure(dispatch_interval_secs=interval, enabled=False)
    bench.now += seconds * 0.99
    assert await bench.reporter.enabled("WORK")
    bench.now += seconds * 0.02
    assert not await bench.reporter.enabled("WORK")


async def test_settings_are_as_old_as_the_question_for_them() -> None:
    """The switch may have been thrown while its state was on its way."""
    bench = Bench()
    await bench.configure()
    bench.store.answering.clear()
    asking = asyncio.create_task(bench.reporter.enabled("WORK"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.now += 2
    bench.store.answering.set()
    with pytest.raises(StoreUnavailable):
        await asking
    await bench.configure(enabled=False)
    assert not await bench.reporter.enabled("WORK")


async def test_settings_that_a_cycle_read_are_as_old_as_its_question_and_replace_no_later_ones() -> None:
    bench = Bench()
    await bench.configure()
    (config,) = await bench.store.configs()
    bench.store.away = True
    bench.reporter.learn(config, uptime() - TRUSTED_SECONDS)
    with pytest.raises(StoreUnavailable):
        await bench.reporter.enabled("WORK")
    bench.reporter.learn(config, uptime())
    assert await bench.reporter.enabled("WORK")
    bench.reporter.learn(config.changed({"enabled": False}), uptime() - 0.1)
    assert await bench.reporter.enabled("WORK"), "an earlier word"
    bench.now += TRUSTED_SECONDS
    with pytest.raises(StoreUnavailable):
        await bench.reporter.enabled("WORK")


async def test_executions_of_a_cycle_begin_by_the_settings_that_it_read() -> None:
    bench = LocalBench()
    bench.gate.set()
    await bench.store.configure(await bench.configure())
    await bench.store.enqueue([EnqueueRequest.of("WORK", item_id, {}) for item_id in "ab"])
    report = await DispatchCycle(bench.store, bench.engine, uniform=lambda: 0.0).run("WORK")
    await bench.engine.drained()
    assert (report.started, sorted(bench.began), bench.store.reads) == (2, ["a", "b"], 1)
    await bench.engine.close()


async def test_closing_commits_a_failure_that_still_waits_for_the_settings() -> None:
    bench = Bench()
    await bench.configure()
    await bench.store.enqueue([EnqueueRequest.of("WORK", item_id, {}) for item_id in "ab"])
    claims = [item.claim for item in (await bench.store.claim("WORK", 2, NO_DELAY)).items]
    bench.store.answering.clear()
    telling = [asyncio.create_task(bench.reporter.failed(claim, "no")) for claim in claims]
    await asyncio.sleep(0)
    closing = asyncio.create_task(bench.reporter.close())
    await asyncio.sleep(0)
    bench.store.answering.set()
    await closing
    stats = await bench.store.stats("WORK")
    assert stats.depth == {Status.READY: 2}
    assert await asyncio.gather(*telling) == [True, True]


async def test_a_switch_that_is_read_too_slowly_is_counted_and_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    await bench.configure()
    read = bench.store.config

    async def read_slowly(item_type: str) -> DispatchConfig | None:
        bench.now += TRUSTED_SECONDS * 1.01
        return await read(item_type)

    bench.store.config = read_slowly  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"took more than 0\.8 s to read the kill switch"):
            await bench.reporter.enabled("WORK")
    assert bench.unread == ["WORK"] * 3
    assert caplog.text.count("No item of WORK begins") == 1
    bench.now += LOG_SECONDS
    with pytest.raises(StoreUnavailable):
        await bench.reporter.enabled("WORK")
    assert caplog.text.count("No item of WORK begins") == 2
    bench.store.config = read  # type: ignore[method-assign]
    assert await bench.reporter.enabled("WORK")
    assert bench.unread == ["WORK"] * 4


async def test_what_was_lost_is_unknown_if_it_had_begun_and_goes_back_uncounted_if_not() -> None:
    bench = Bench()
    await bench.configure(on_unknown="hold")
    await bench.store.enqueue([EnqueueRequest.of("WORK", name, {}) for name in ("begun", "waiting")])
    claims = [item.claim for item in (await bench.store.claim("WORK", 2, NO_DELAY)).items]
    begun = next(claim for claim in claims if claim.item_id == "begun")
    assert await bench.reporter.begins(begun)
    assert [await bench.reporter.lost(claim, "its worker died") for claim in claims] == [True, True]
    items = {item.item_id: item for item in await bench.store.items("WORK", None, 10, None)}
    assert (items["begun"].status, items["begun"].last_error) == (Status.UNKNOWN, "unknown: its worker died")
    assert (items["waiting"].status, items["waiting"].retry_count) == (Status.READY, 0)
    assert not await bench.reporter.lost(claims[0]._replace(item_id="gone"), "its worker died")
