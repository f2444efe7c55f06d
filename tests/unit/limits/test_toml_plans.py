"""Plans in a file: read again when it changed, and refused by what is wrong in it."""

from __future__ import annotations

import logging
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from paceline import Plan, TokenBucket, TomlPlans
from paceline.errors import ConfigurationError, NotFound
from paceline.limits.plan_documents import document_of
from paceline.limits.toml_plans import read_plans
from paceline.testing import eventually
from tests.unit.limits.both import World


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


def test_a_file_may_have_rates(tmp_path: Path) -> None:
    path = tmp_path / "plans.toml"
    path.write_text('[plans]\nfree = "100/hour;1000/day"\n[plans.gold]\nrate = "10/minute burst 20"\nshadow = true\n')
    assert read_plans(path) == {
        "free": Plan("free", "100/hour;1000/day"),
        "gold": Plan("gold", TokenBucket(20, Fraction(1, 6)), shadow=True),
    }
