"""Every command that installs something, wherever a reader may copy it from, names what this repository defines.

Another project may own any other name, and its code would run in the place of ours.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from paceline.core_command import NEEDS
from paceline.extras import MODULES

ROOT = Path(__file__).parents[2]
READ = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs",
    "src",
    "examples",
    "benchmarks",
    "packages",
    "apps",
)
"""And not `Makefile`, `.github` and `tests`, which install tools for developers."""
FOREIGN = {"fastapi", "pytest", "uvicorn"}
"""What else a reader is told to install. Check who publishes a name before you add it."""

COMMAND = re.compile(r"\b(?:pip|pipx|uv tool) install\b|\buv add\b|\b(?:poetry|pdm|rye) add\b")
WORD = re.compile(r"""[ \t]+(?:'([^'\n]*)'|"([^"\n]*)"|([^\s`'"(),;:\\]+))""")
MENTIONED = re.compile(r"\bpaceline[\w-]*\[[\w{},. -]+\]")
WITH_VALUE = {"-c", "-e", "-r", "--constraint", "--editable", "--requirement", "--group", "--index-url", "--python"}


def _projects() -> dict[str, set[str]]:
    """The distributions of this repository, with the extras of each."""
    files = subprocess.run(
        ["git", "ls-files", "*pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    projects = [tomllib.loads((ROOT / file).read_text())["project"] for file in files]
    return {canonicalize_name(project["name"]): set(project.get("optional-dependencies", {})) for project in projects}


OURS = _projects()


def _requirements(text: str) -> Iterator[str]:
    """The requirements of the commands in a text, and those of ours that it mentions elsewhere."""
    for command in COMMAND.finditer(text):
        at, skips = command.end(), False
        while word := WORD.match(text, at):
            at = word.end()
            argument = next(group for group in word.groups() if group is not None)
            if not skips and not argument.startswith(("-", ".", "/", "$", "%")):
                yield argument
            skips = argument in WITH_VALUE
    yield from MENTIONED.findall(text)


def problems(text: str) -> list[str]:
    """What is wrong with the install commands in a text."""
    wrong = []
    for argument in _requirements(text):
        # A message fills in the extra: `test_messages_name_extras_that_exist` has those.
        try:
            requirement = Requirement(re.sub(r"\{.*?\}", "all", argument))
        except InvalidRequirement:
            wrong.append(f"{argument!r} is no requirement")
            continue
        name = canonicalize_name(requirement.name)
        if name not in OURS and name not in FOREIGN:
            wrong.append(f"{argument!r}: no pyproject.toml of this repository defines {name}")
        elif unknown := requirement.extras - OURS.get(name, requirement.extras):
            wrong.append(f"{argument!r}: {name} has no extra {', '.join(sorted(unknown))}")
    return wrong


def test_install_commands_name_what_this_repository_defines() -> None:
    files = subprocess.run(
        ["git", "ls-files", *READ], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    texts = {
        name: (ROOT / name).read_text()
        for name in files
        if name.endswith((".md", ".py", ".toml", ".html", ".js", ".txt", ".yaml", ".yml"))
    }
    assert sum(len(COMMAND.findall(text)) for text in texts.values()) > 30
    found = {name: wrong for name, text in texts.items() if (wrong := problems(text))}
    assert found == {}


def test_messages_name_extras_that_exist() -> None:
    assert set(MODULES) | set(NEEDS.values()) <= OURS["paceline"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pip install pacelines", "defines pacelines"),
        ("Try `pip install -U 'paceline[server]' limitz` now", "defines limitz"),
        ("needs: pip install 'paceline[rediss]'", "no extra rediss"),
        ("pip install -c constraints.txt 'paceline[server,grcp]'", "no extra grcp"),
        ("uv add paceline-mms", "defines paceline-mms"),
        ("uv pip install --python 3.13 Paceline_Core", "defines paceline-core"),
        ("holidays need `paceline[holidays]`", "no extra holidays"),
        ("pip install 'fastapi>'", "is no requirement"),
    ],
)
def test_a_wrong_name_is_noticed(text: str, said: str) -> None:
    assert [said in problem for problem in problems(text)] in ([True], [True, True])


@pytest.mark.parametrize(
    "text",
    [
        "pip install paceline",
        "pip install 'paceline[server,postgres]>=1' pytest",
        "Run it with `pip install fastapi uvicorn` and",
        "f\"pip install 'paceline[testing,{name}]'\"",
        "pip install -r requirements.txt -e . ./packages/queue ./apps/sms",
    ],
)
def test_a_right_one_is_not(text: str) -> None:
    assert problems(text) == []
