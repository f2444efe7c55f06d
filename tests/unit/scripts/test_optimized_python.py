"""Which Python the environment of a clone is made with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scripts import optimized_python

VERSION = "{}.{}".format(*sys.version_info)


def system_with(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> str:
    """A folder of the system's programs in which `python3` is this script."""
    python = directory / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("os.defpath", str(directory))
    return str(python)


@pytest.fixture(params=[True, False], ids=["optimized", "plain"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """How the Python that asks was built."""
    arguments = "'--enable-shared' '--enable-optimizations'" if request.param else "'--enable-shared'"
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: arguments)
    return bool(request.param)


def test_a_plain_build_makes_room_for_the_systems_of_its_version(
    build: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = system_with(tmp_path, monkeypatch, f"echo {VERSION}")
    assert optimized_python.chosen() == (sys.executable if build else python)


@pytest.mark.parametrize(
    "script", ["echo 3.2", "echo 'No module named ensurepip' >&2; exit 1"], ids=["another version", "no environments"]
)
def test_otherwise_it_is_the_one_that_asks(
    script: str, build: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_with(tmp_path, monkeypatch, script)
    assert optimized_python.chosen() == sys.executable


def test_a_system_without_python_has_none(build: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.defpath", str(tmp_path))
    assert optimized_python.chosen() == sys.executable


def test_the_real_one_exists() -> None:
    assert Path(optimized_python.chosen()).exists()
