"""The core, the files of the wheel `paceline`, works with Python alone: no other package, no other file of ours."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from paceline.core_command import NEEDS
from paceline.extras import MODULES, WITH_QUEUE
from paceline.server.cli.commands import ABOUT

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
NEED_MORE = re.compile(
    r"paceline\.(integrations\.\w+|limits\.stores\.(sql|sql_plans|postgres_limits|tables)|testing\.(plugin|availability|servers\..+)"
    r"|downstream\.stores\.(sql_permits|sql_states|postgres_permits|tables))"
)
"""Modules that can't be imported without a framework, a database or pytest."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel has."""
    folder = tmp_path_factory.mktemp("core")
    excluded = {ROOT / path for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]}
    assert all(path.exists() for path in excluded)

    def ignored(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or Path(directory, name) in excluded}

    shutil.copytree(ROOT / "src/paceline", folder / "paceline", ignore=ignored)
    return folder


def run(core: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in an interpreter without site-packages, variables and current folder."""
    script = f"import sys\nsys.path.insert(0, {str(core)!r})\n{script}"
    command = [sys.executable, "-I", "-S", "-c", script, *arguments]
    return subprocess.run(command, cwd=core, env={}, capture_output=True, text=True, check=False)


IMPORT_ALL = """
import importlib, pkgutil
import paceline
for module in pkgutil.walk_packages(paceline.__path__, "paceline."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print("missing", module.name, error.name)
    except ImportError as error:
        print("extra", module.name, error.extra)
"""


def test_the_core_imports_the_standard_library_alone(core: Path) -> None:
    ended = run(core, IMPORT_ALL)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert len(lines) > 10
    for kind, module, reason in lines:
        assert NEED_MORE.fullmatch(module), (kind, module, reason)
        if module.startswith("paceline.integrations.") and not module.endswith(".werkzeug"):  # which others import
            assert kind == "extra", module


LIMITS = """
from datetime import UTC, datetime
from pathlib import Path
from paceline import *
from paceline.compat.limits import MovingWindowRateLimiter, parse, storage_from_string
from paceline.integrations.asgi import RateLimitMiddleware
from paceline.integrations.functions import rate_limit
from paceline.testing import FakeClock

PLANS = '''
[plans]
free = "1/minute"
day = {algorithm = "fixed_window", limit = 1, calendar = "day"}
'''
Path(sys.argv[1]).write_text(PLANS)
with Limiter("memory://", plans=TomlPlans(sys.argv[1]), clock=FakeClock(datetime(2030, 3, 1, tzinfo=UTC))) as limiter:
    for plan in ("free", "day"):
        assert [limiter.acquire(plan, plans=[plan]).allowed for _ in range(2)] == [True, False]
assert MovingWindowRateLimiter(storage_from_string("memory://")).hit(parse("10/minute"), "me")
for name in ("redis://h", "rediss://h", "redis+sentinel://h/m", "redis+cluster://h", "unix:///s"):
    Limiter(name), AsyncLimiter(name)
"""


def test_limits_work_with_python_alone(core: Path, tmp_path: Path) -> None:
    ended = run(core, LIMITS, str(tmp_path / "plans.toml"))
    assert (ended.returncode, ended.stderr) == (0, "")


MISSING = """
import zoneinfo
import paceline
from paceline import AsyncLimiter, ConfigurationError, FixedWindow, Limiter
zoneinfo.reset_tzpath([])

def say(attempt):
    try:
        attempt()
    except ConfigurationError as error:
        print(error)

say(lambda: paceline.SlotScheduler)
say(lambda: paceline.DispatchQueue)
say(lambda: paceline.Tasks)
say(lambda: Limiter("sqlite:///limits.db"))
say(lambda: AsyncLimiter("postgresql://h/x"))
FixedWindow(5, calendar="day")
say(lambda: FixedWindow(5, calendar="day", zone="Europe/Berlin"))
"""


def test_a_missing_extra_is_named_in_one_line(core: Path) -> None:
    ended = run(core, MISSING)
    assert ended.stdout.splitlines() == [
        "paceline.SlotScheduler needs: pip install 'paceline[queue]'",
        "paceline.DispatchQueue needs: pip install 'paceline[queue]'",
        "paceline.Tasks needs: pip install 'paceline[queue]'",
        "limits at sqlite:// needs: pip install 'paceline[queue]'",
        "limits at postgresql:// needs: pip install 'paceline[postgres]'",
        "the time zone 'Europe/Berlin' needs: pip install 'paceline[timezones]'",
    ]


COMMAND = "import runpy\nsys.argv[0] = 'paceline'\nrunpy.run_module('paceline', run_name='__main__')"


def test_the_command_of_the_core_queries_limits(core: Path) -> None:
    (core / "paceline.toml").write_text('[plans]\nfree = "2/hour"\n')
    version = run(core, COMMAND, "--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "paceline")
    assert run(core, COMMAND, "--help").stdout == run(core, COMMAND).stdout
    allowed = run(core, COMMAND, "limits", "acquire", "me", "--plan", "free")
    kept = "paceline: nothing is kept without PACELINE_REDIS_URL\n"
    assert (allowed.returncode, allowed.stdout, allowed.stderr) == (0, "allowed: plan free has 1 of 2 left\n", kept)
    wrong = run(core, COMMAND, "limits", "peek", "me", "--plan", "gold")
    assert (wrong.returncode, wrong.stderr) == (1, kept + "paceline: no plan named 'gold'\n")
    unknown = run(core, COMMAND, "lmits")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("command", ["worker", "serve", "slots"])
def test_other_commands_name_their_extra(core: Path, command: str) -> None:
    ended = run(core, COMMAND, command, "--anything")
    needs = f"paceline {command} needs: pip install 'paceline[{NEEDS[command]}]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", needs)


def test_every_command_is_known_to_the_core() -> None:
    assert {*NEEDS, "limits"} == set(ABOUT)


def test_the_extras_that_bring_the_queue_are_those_of_the_project() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert PROJECT["project"]["dependencies"] == []
    with_queue = {
        name
        for name, requirements in extras.items()
        for requirement in map(Requirement, requirements)
        # An application needs paceline[queue].
        if (requirement.name == "paceline" and "queue" in requirement.extras)
        or requirement.name in ("paceline-payments", "paceline-sms")
    }
    assert with_queue - {"all"} == WITH_QUEUE <= set(MODULES)


APPLICATIONS = re.compile(
    r"(?i)\b(payments?|payees?|payers?|ibans?|pain\.?001|camt|sms|pay-\d+|paceline_(payments|sms))\b"
)
ALLOWED = {"extras.py": 3, "server/console/files.py": 1}
"""Lines that may have such a word: the extras that install the applications, and the browser's feature `payment=()`."""


def test_library_and_service_have_no_word_of_the_applications() -> None:
    package = ROOT / "src/paceline"
    found = {
        str(file.relative_to(package)): sum(bool(APPLICATIONS.search(line)) for line in file.read_text().splitlines())
        for file in package.rglob("*")
        if file.suffix in {".py", ".js", ".html", ".css", ".lua", ".sql"}
    }
    assert {file: lines for file, lines in found.items() if lines} == ALLOWED
