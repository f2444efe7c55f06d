"""What is installed is known: versions with hashes, a bill of materials with all of them, and a table with the
reasons."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = {"paceline", "paceline-queue", "paceline-payments", "paceline-sms"}
DEPENDENCIES = ROOT / "docs/explanation/dependencies.md"


def locked() -> dict[str, tuple[str, str]]:
    """Version and marker of each package of the lock file."""
    entries = re.findall(
        r"^(\S+?)(?:\[.*?\])?==(\S+)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)",
        (ROOT / "requirements.lock").read_text(),
        re.MULTILINE,
    )
    return {canonicalize_name(name): (version, marker) for name, version, marker, _ in entries}


def pinned() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            found.setdefault(canonicalize_name(requirement.name), set()).add(next(iter(requirement.specifier)).version)
    return found


def test_the_lock_has_a_hash_for_every_package_in_the_version_that_is_tested() -> None:
    text = (ROOT / "requirements.lock").read_text()
    packages = locked()
    assert len(packages) == len(re.findall(r"^\S+==", text, re.MULTILINE)) > 60
    assert "://" not in text, "no addresses"
    tested = pinned()
    for name, (version, _) in packages.items():
        assert name not in tested or version in tested[name], f"{name}: run make lock"


def test_the_lock_has_everything_that_paceline_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements: list[str] = []
    for extra in re.findall(r"[a-z]+", extras["all"][0].partition("[")[2]):
        requirements += extras[extra]
    names = {canonicalize_name(Requirement(requirement).name) for requirement in requirements} - OURS
    assert names <= set(locked()), "run make lock"


def test_the_bill_of_materials_names_what_is_locked() -> None:
    program = ROOT / "scripts/sbom.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "paceline"
    named = {component["name"]: component["version"] for component in document["components"]}
    here = {name: version for name, (version, marker) in locked().items() if not marker or Marker(marker).evaluate()}
    assert set(here) == set(named) - OURS
    assert all(
        component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        for component in document["components"]
    )
    unlicensed = [component["name"] for component in document["components"] if not component.get("licenses")]
    assert len(unlicensed) < len(named) / 2
    again = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert json.loads(again.stdout)["serialNumber"] == document["serialNumber"]


def test_the_table_of_dependencies_has_those_that_are_asked_for() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = document["project"], document["dependency-groups"]
    queue = names_of(project["optional-dependencies"]["queue"]) - OURS
    extras = names_of(requirement for extra in project["optional-dependencies"].values() for requirement in extra)
    for application in ROOT.glob("apps/*/pyproject.toml"):
        hook = tomllib.loads(application.read_text())["tool"]["hatch"]["metadata"]["hooks"]["custom"]
        extras |= names_of(hook["dependencies"])
    others = names_of(requirement for group in groups.values() for requirement in group if isinstance(requirement, str))
    builders = names_of(document["build-system"]["requires"])
    tables = {part.partition("\n")[0]: rows_of(part) for part in DEPENDENCIES.read_text().split("\n## ")[1:]}
    assert tables["Installed with paceline"] == set(project["dependencies"]) == set()
    assert tables["Installed with `paceline[queue]`"] == queue
    rows = set().union(*tables.values())
    assert (extras | others) - rows == OURS
    assert rows - extras - others - builders == {"uplot"}, "which is shipped, not installed"


def names_of(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def rows_of(text: str) -> set[str]:
    """The packages that a table names in its first column."""
    cells = re.findall(r"^\| (?!package)([\w.,() -]+?) \|", text, re.MULTILINE)
    return {canonicalize_name(name) for cell in cells for name in re.findall(r"[\w.-]+", cell)}
