"""The files that a forge and a package index read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_its_commit_with_its_version_beside_it(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


def test_an_action_has_one_version() -> None:
    used = {line for workflow in WORKFLOWS for line in re.findall(r"uses: (.*)", workflow.read_text())}
    assert len(used) == len({line.partition("@")[0] for line in used})


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_needs_more(workflow: Path) -> None:
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}


def test_every_python_of_the_classifiers_is_checked() -> None:
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    jobs = read(".github/workflows/check.yml")["jobs"]
    (newest,) = {
        step["with"]["python-version"] for step in jobs["newest"]["steps"] if "python-version" in step.get("with", {})
    }
    assert [*jobs["quick"]["strategy"]["matrix"]["python"], newest] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_a_release_is_published_without_a_secret_by_the_last_job_alone() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "secrets." not in text
    assert "password" not in text.partition("jobs:")[2]
    jobs = read(".github/workflows/release.yml")["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None,
        "attest": "build",
        "publish": "attest",
    }
    assert "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}


def test_the_project_is_described_by_one_sentence() -> None:
    sentence = PROJECT["description"]
    assert read("CITATION.cff")["abstract"] == sentence
    for file in ("mkdocs.yml", "docs/README.md", "src/paceline/__init__.py", "src/paceline/server/http/app.py"):
        assert sentence in (ROOT / file).read_text(), file


def test_nothing_names_an_address_that_is_not_ours() -> None:
    """Who hosts this is not known: no repository, no organisation, no mail address."""
    assert "urls" not in PROJECT
    assert "authors" not in PROJECT
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), ROOT / "Dockerfile", *(ROOT / ".github").rglob("*.*")]
    files += [
        ROOT / "mkdocs.yml",
        ROOT / "compose.yaml",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.y*ml"),
    ]
    for file in files:
        text = file.read_text()
        assert not re.search(
            r"(github\.com|gitlab\.com|codeberg\.org|ghcr\.io|docker\.io)/paceline|@paceline\b", text
        ), file
        mails = set(re.findall(r"[\w.+-]+@[\w-]+\.(?:com|org|net|io|dev)\b", text))
        assert {mail for mail in mails if not re.search(r"@(\w+\.)?example\.", mail)} == set(), file
