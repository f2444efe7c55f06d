"""Plans as documents and files: read back as written, refused by the name that was typed, reloaded while running."""

from __future__ import annotations

import json
import logging
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from paceline import FixedWindow, Plan, SlidingLog, SlidingWindow, TokenBucket, TomlPlans
from paceline.errors import ConfigurationError, NotFound
from paceline.limits.plan_documents import document_of, plan_from
from paceline.limits.toml_plans import read_plans
from paceline.testing import eventually
from tests.unit.limits.both import World

WINDOW = {"algorithm": "fixed_window", "limit": 1, "window": "PT1S"}


@pytest.mark.parametrize(
    "plan",
    [
        Plan("a", TokenBucket(10, 1)),
        Plan("a", TokenBucket(10, 0.5), on_error="closed"),
        Plan("a", TokenBucket(10, Fraction(1, 3)), shadow=True),
        Plan("a", TokenBucket(10, Fraction(1234567, 9999991))),
        Plan("a", FixedWindow(5, "P1DT1H"), overrides={"vip": SlidingWindow(7, "PT0.5S"), "x": TokenBucket(1, 1)}),
        Plan("a", SlidingLog(5, "PT1S")),
    ],
)
def test_documents_survive_the_wire(plan: Plan) -> None:
    assert plan_from("a", json.loads(json.dumps(document_of(plan)))) == plan


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "plan"),
        ([], "plan"),
        ({}, "algorithm"),
        ({"algorithm": "leaky"}, "algorithm"),
        ({"algorithm": ["token_bucket"]}, "algorithm"),
        ({"algorithm": "token_bucket"}, "capacity"),
        ({"algorithm": "token_bucket", "capacity": 1}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 1, "perSecond": 0}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 1, "perSecond": "1/0"}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 1, "per_second": -1}, "per_second"),
        ({"algorithm": "token_bucket", "capacity": 1, "per_second": 1, "perSecond": 1}, "per_second"),
        ({"algorithm": "token_bucket", "capacity": "1", "perSecond": 1}, "capacity"),
        ({"algorithm": "fixed_window", "limit": 1, "window": "P1M"}, "window"),
        ({"algorithm": "fixed_window", "limit": 1, "window": 60}, "window"),
        ({**WINDOW, "burst": 2}, "burst"),
        ({**WINDOW, "onError": "x"}, "onError"),
        ({**WINDOW, "on_error": "x"}, "on_error"),
        ({**WINDOW, "shadow": "yes"}, "shadow"),
        ({**WINDOW, "overrides": []}, "overrides"),
        ({**WINDOW, "overrides": {"k": 5}}, "overrides.k"),
        (
            {
                "algorithm": "fixed_window",
                "limit": 1,
                "window": "PT1S",
                "overrides": {"k": {"limit": 0, "window": "PT1S"}},
            },
            "overrides.k.limit",
        ),
        (
            {
                "algorithm": "fixed_window",
                "limit": 1,
                "window": "PT1S",
                "overrides": {"k": {"limit": 1, "per_second": 1}},
            },
            "overrides.k.window",
        ),
    ],
)
def test_what_can_not_work_is_refused_by_the_name_that_was_typed(document: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan_from("a", document)
    assert caught.value.field == field


def write(path: Path, text: str, version: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(version, version))


GOLD = '[plans.gold]\nalgorithm = "token_bucket"\ncapacity = {}\nper_second = 1\n'


async def test_a_file_is_read_again_when_it_changed(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plans.toml"
    write(path, GOLD.format(5), 1)
    limiter = world.limiter(on="memory", plans=TomlPlans(path, refresh_every=10))
    assert (await limiter.acquire("u", "gold")).limit == 5
    write(path, GOLD.format(8), 2)
    assert (await limiter.acquire("u", "gold")).limit == 5
    world.clock.advance(10)
    await limiter.acquire("u", "gold")
    await eventually(lambda: limiter.plans["gold"].spec.capacity == 8)
    assert (await limiter.acquire("u", "gold")).limit == 8

    for version, bad in enumerate(["[plans.gold", GOLD.format(-1), "plans = 3"], start=3):
        write(path, bad, version)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await limiter.refresh()
                assert (await limiter.acquire("w", "gold")).limit == 8
    assert len([record for record in caplog.records if "stay as they were" in record.message]) == 3
    path.unlink()
    await limiter.refresh()
    assert (await limiter.acquire("w", "gold")).limit == 8

    caplog.clear()
    write(path, "", 9)
    for _ in range(3):
        await limiter.refresh()
        assert (await limiter.acquire("w", "gold")).limit == 8, "an empty file is one that is being saved"
    assert [record.message for record in caplog.records if "is empty" in record.message][1:] == []
    assert "is empty" in caplog.text

    write(path, "[plans]", 10)
    await limiter.refresh()
    with pytest.raises(NotFound):
        await limiter.acquire("u", "gold")


@pytest.mark.parametrize("torn", ["", GOLD.format(7)])
def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    path = tmp_path / "plans.toml"
    both = GOLD.format(5) + GOLD.format(9).replace("gold", "free")
    write(path, both, 1)
    plans = TomlPlans(path)
    assert set(plans.load()) == {"gold", "free"}
    read = Path.read_text

    def saved_in_between(self: Path, *arguments: Any, **options: Any) -> str:
        monkeypatch.undo()
        write(path, torn, 3)
        text = read(self, *arguments, **options)
        write(path, both.replace("5", "6"), 4)
        return text

    write(path, both.replace("5", "8"), 2)
    monkeypatch.setattr(Path, "read_text", saved_in_between)
    assert document_of(plans.load()["gold"])["capacity"] == 5, "what was read is neither the old nor the new file"
    assert set(plans.load()) == {"gold", "free"}
    assert document_of(plans.load()["gold"])["capacity"] == 6


async def test_limiters_share_a_file_that_is_read_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def counted(path: Path) -> dict[str, Plan]:
        reads.append(path)
        return read_plans(path)

    monkeypatch.setattr("paceline.limits.toml_plans.read_plans", counted)
    path = tmp_path / "plans.toml"
    write(path, GOLD.format(5), 1)
    plans = TomlPlans(path)
    limiters = [world.limiter(on="memory", plans=plans) for _ in range(2)]
    for limiter in limiters:
        assert (await limiter.acquire("u", "gold")).limit == 5
    write(path, GOLD.format(8), 2)
    for limiter in limiters:
        await limiter.refresh()
        assert (await limiter.acquire("u", "gold")).limit == 8
    write(path, "[plans.gold", 3)
    late = world.limiter(on="memory", plans=plans)
    assert (await late.acquire("u", "gold")).limit == 8
    assert len(reads) == 3
    for limiter in [*limiters, late]:
        await limiter.close()


async def test_a_file_that_was_never_good_is_refused(world: World, tmp_path: Path) -> None:
    path = tmp_path / "plans.toml"
    for text, says in (
        (None, "can't be read"),
        ("=", "not TOML"),
        ('[plans.a]\nalgorithm = "none"', r"plans\.a\.algorithm"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigurationError, match=says):
            await world.limiter(plans=TomlPlans(path)).acquire("u", "gold")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        TomlPlans(path).load()


async def test_an_awaited_registry_that_fails_later_keeps_the_plans() -> None:
    class Database:
        refresh_every: float | None = 1.0
        plans: dict[str, Plan] | None = None

        async def load(self) -> dict[str, Plan] | None:
            if self.plans is None:
                raise ConfigurationError("plans", "no table")
            return self.plans

    world, registry = World("async"), Database()
    limiter = world.limiter(plans=registry)
    with pytest.raises(ConfigurationError):
        await limiter.acquire("u", "gold")
    registry.plans = {"gold": Plan("gold", TokenBucket(3, 1))}
    assert (await limiter.acquire("u", "gold")).limit == 3
    registry.plans = None
    world.clock.advance(5)
    assert (await limiter.acquire("u", "gold")).limit == 3
    await limiter.close()
