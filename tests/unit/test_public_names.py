"""What `import headgate` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headgate
from headgate import bootstrap
from headgate.entrypoints import cli
from headgate.entrypoints.cli.commands import ABOUT

DRIVERS = {
    "sqlalchemy", "alembic", "psycopg", "oracledb", "redis", "confluent_kafka", "temporalio", "fastapi", "starlette",
    "uvicorn", "pydantic", "httpx", "httpx2", "prometheus_client", "structlog", "typer", "rich", "holidays",
    "matplotlib",
}  # fmt: skip


def test_every_public_name_is_there_and_sorted() -> None:
    assert sorted(headgate.__all__) == headgate.__all__
    assert all(hasattr(headgate, name) for name in headgate.__all__)


def loaded_after(script: str, wanted: set[str]) -> set[str]:
    """Which of the wanted modules a new interpreter has loaded after `script`."""
    script = f"import sys\n{script}\nprint('\\n', *({wanted!r} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ended.stdout.splitlines()[-1].split())


def test_importing_headgate_imports_no_driver() -> None:
    names = ", ".join(headgate.__all__)
    assert loaded_after(f"from headgate import {names}", DRIVERS) == set()


def test_importing_headgate_loads_what_is_used() -> None:
    parts = {"asyncio", "headgate.slots", "headgate.dispatch", "headgate.admission"}
    assert loaded_after("import headgate", parts) == set()
    assert loaded_after("from headgate import Plan", parts) == {"headgate.admission"}


def test_the_names_are_where_they_are_said_to_be() -> None:
    assert sorted(headgate._HOMES) == headgate.__all__
    assert set(headgate.__all__) <= set(dir(headgate))
    with pytest.raises(AttributeError, match="has no attribute 'unheard_of'"):
        getattr(headgate, "unheard_of")  # noqa: B009
    with pytest.raises(ImportError):
        exec("from headgate import unheard_of")


HEAVY = DRIVERS | {"asyncio", "pydantic_settings", "headgate.settings", "headgate.slots", "orjson"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_asking_for_help_loads_next_to_nothing(arguments: list[str]) -> None:
    script = f"""
from headgate.entrypoints.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass"""
    assert loaded_after(script, HEAVY) == set()


def test_a_command_loads_itself_only() -> None:
    script = """
from headgate.entrypoints.cli import main
try:
    main(["tokens", "--help"])
except SystemExit:
    pass"""
    commands = {f"headgate.entrypoints.cli.{name}" for name in ("serve", "demo", "slots", "payments", "tokens")}
    assert loaded_after(script, commands) == {"headgate.entrypoints.cli.tokens"}
    assert loaded_after(script, {"sqlalchemy", "alembic", "rich", "fastapi", "holidays"}) == set()


def test_help_says_what_the_commands_say_themselves() -> None:
    commands = cli.app.load_all().commands
    assert list(commands) == list(ABOUT)
    for name, command in commands.items():
        assert " ".join(command.help.split()).startswith(ABOUT[name]), name


def test_importing_bootstrap_imports_no_driver_until_a_name_is_asked_for() -> None:
    assert loaded_after("from headgate.bootstrap import limit_store", DRIVERS) == set()


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in bootstrap.MODULES.items() for name in names]
)
def test_bootstrap_finds_each_name_in_its_module(module: str, name: str) -> None:
    assert getattr(bootstrap, name).__module__ == f"headgate.bootstrap.{module}"
    assert name not in bootstrap.MODULES, "importing the module of that name would hide it"


def test_bootstrap_knows_no_other_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'unheard_of'"):
        getattr(bootstrap, "unheard_of")  # noqa: B009
