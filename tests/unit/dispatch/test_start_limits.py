"""The limits of item types' starts: a downstream each, by their settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from paceline import ConfigurationError, FixedWindow, NotFound, Plan, SlidingLog, TokenBucket
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.start_limits import StartLimits, starts_of
from paceline.limits.model import CalendarWindow, Concurrency, Gcra
from paceline.limits.rate_text import Rate
from paceline.limits.specs import Spec

MAIL = DispatchConfig(item_type="MAIL")


def rated(rate: str | None) -> DispatchConfig:
    return MAIL.changed({"rate": rate})


async def plans() -> Mapping[str, Plan]:
    several = Plan("several", "10/second;1000/day", overrides={"VIP": "20/second"})
    return {"several": several, "open": Plan("open", Concurrency(5))}


async def test_a_rate_is_a_downstream_named_after_the_item_type_which_lets_all_of_it_begin_at_once() -> None:
    limits = StartLimits("memory://")
    (mail,) = await limits.of(rated("3/minute"))
    assert (mail.name, (await mail.state()).rate) == ("task:MAIL", "3/minute")
    for _ in range(3):
        await mail.call(timeout=1).enter()
    assert (mail.running, mail.waiting) == (3, 0)
    assert await limits.of(MAIL) == ()
    await limits.close()


async def test_it_stays_the_same_as_long_as_the_rate_and_is_closed_when_its_last_execution_is_over() -> None:
    limits = StartLimits("memory://")
    (first,) = await limits.of(rated("10/second"))
    assert await limits.of(rated("10/second")) == (first,)
    call = first.call()
    await call.enter()
    (second,) = await limits.of(rated("20/second"))
    assert second is not first
    assert limits._replaced == [first]
    await call.leave()
    await limits.of(rated(None))
    assert limits._replaced == []
    await limits.close()


async def test_permits_of_a_day_do_not_hold_back_a_rate_per_second(tmp_path: Path) -> None:
    limits = StartLimits(f"sqlite:///{tmp_path / 'work.db'}")
    for rate in ("1/day", "1/second"):
        (starts,) = await limits.of(rated(rate))
        async with starts.call(timeout=5):
            pass
    await limits.close()


async def test_the_longest_item_type_has_a_name() -> None:
    limits, longest = StartLimits("memory://"), "M" * 64
    (starts,) = await limits.of(DispatchConfig(item_type=longest, rate="1/day"))
    assert starts.name == f"task:{longest}"
    await starts.call(timeout=1).enter()
    await limits.close()


async def test_a_plan_with_several_limits_is_as_many_downstreams() -> None:
    limits = StartLimits("memory://", plans)
    held = await limits.of(MAIL.changed({"admissionPlan": "several"}))
    assert [(each.name, (await each.state()).rate) for each in held] == [
        ("task:MAIL", "10/second"),
        ("task:MAIL;P1D", "1000/day"),
    ]
    (vip,) = await limits.of(DispatchConfig(item_type="VIP", admission_plan="several"))
    assert (await vip.state()).rate == "20/second"
    await limits.close()


async def test_a_plan_that_does_not_exist_or_limits_no_rate_is_an_error() -> None:
    limits = StartLimits("memory://", plans)
    with pytest.raises(NotFound, match="no admission plan named 'nowhere'"):
        await limits.of(MAIL.changed({"admissionPlan": "nowhere"}))
    with pytest.raises(ConfigurationError, match="'open' limits calls in flight"):
        await limits.of(MAIL.changed({"admissionPlan": "open"}))


@pytest.mark.parametrize(
    ("spec", "limit", "span"),
    [
        (SlidingLog(50, "PT1S"), 50, timedelta(seconds=1)),
        (FixedWindow(50, "PT1M"), 50, timedelta(minutes=1)),
        (CalendarWindow(50, "day", "UTC"), 50, timedelta(days=1)),
        (TokenBucket(50, 10), 50, timedelta(seconds=5)),
        (Gcra("10/second"), 1, timedelta(milliseconds=100)),
    ],
)
def test_each_algorithm_is_a_rate_in_every_sliding_window(spec: Spec, limit: int, span: timedelta) -> None:
    assert starts_of(Plan("bank", spec), "MAIL") == [Rate(limit, span)]


def test_a_shadow_plan_limits_nothing() -> None:
    assert starts_of(Plan("bank", "10/second", shadow=True), "MAIL") == []
