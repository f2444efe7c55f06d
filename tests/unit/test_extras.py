"""Extras: what is missing is named with the command that brings it, and nothing is imported to find out."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from paceline import extras
from paceline.errors import MissingExtra
from paceline.extras import MODULES, absent, installed, needed, require

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two extras whose modules nobody has."""
    monkeypatch.setitem(MODULES, "gone", ("no_such_module",))
    monkeypatch.setitem(MODULES, "half", ("json", "no_such_package.part"))
    monkeypatch.setitem(MODULES, "there", ("json", "email.message"))


def test_each_extra_is_one_of_the_project() -> None:
    optional = set(PROJECT["optional-dependencies"])
    assert set(MODULES) - {"gone", "half", "there"} <= optional
    assert set(extras.DATABASES.values()) <= optional


def test_an_extra_is_installed_if_all_of_its_modules_are() -> None:
    assert installed("there")
    assert not installed("gone")
    assert not installed("half"), "nor is the package that a module would be in"


def test_every_missing_extra_is_named_once_in_one_command() -> None:
    require("this", "there")
    with pytest.raises(MissingExtra) as caught:
        require("this", "gone", "there", "half", "gone")
    assert caught.value.extra == "gone,half"
    assert str(caught.value) == "this needs: pip install 'paceline[gone,half]'"


def test_only_the_absence_of_the_extras_own_modules_is_its_absence() -> None:
    with pytest.raises(MissingExtra), needed("this", "half"):
        import no_such_package.part  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(ModuleNotFoundError) as caught, needed("this", "half"):
        import something_else  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtra)


def test_a_package_is_absent_while_it_is_not_loaded_and_stays_if_it_is() -> None:
    with absent("no_such_thing"), pytest.raises(ImportError):
        import no_such_thing  # type: ignore[import-not-found]  # noqa: F401
    assert "no_such_thing" not in sys.modules
    with absent("json"):
        import json

        assert json.loads("1") == 1
    assert "json" in sys.modules
