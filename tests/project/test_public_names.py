"""What `import paceline` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import paceline
from paceline.server import cli
from paceline.server.apps import app_commands
from paceline.server.cli.commands import all_commands

DRIVERS = {
    "sqlalchemy", "alembic", "psycopg", "oracledb", "redis", "confluent_kafka", "temporalio", "fastapi", "starlette",
    "uvicorn", "pydantic", "httpx", "httpx2", "prometheus_client", "structlog", "typer", "rich", "holidays",
    "matplotlib",
}  # fmt: skip


def test_every_public_name_is_there_and_sorted() -> None:
    assert sorted(paceline.__all__) == paceline.__all__
    assert all(hasattr(paceline, name) for name in paceline.__all__)


def loaded_after(script: str, modules: set[str]) -> set[str]:
    """Which of the given modules a new interpreter has loaded after `script`."""
    script = f"import sys\n{script}\nprint('\\n', *({modules!r} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ended.stdout.splitlines()[-1].split())


def test_importing_paceline_imports_no_driver() -> None:
    names = ", ".join(paceline.__all__)
    assert loaded_after(f"from paceline import {names}", DRIVERS) == set()


def test_importing_paceline_loads_what_is_used() -> None:
    parts = {"asyncio", "paceline.slots", "paceline.dispatch", "paceline.limits"}
    assert loaded_after("import paceline", parts) == set()
    assert loaded_after("from paceline import Plan", parts) == {"paceline.limits"}


def test_the_names_are_where_they_are_said_to_be() -> None:
    assert sorted(paceline._HOMES) == paceline.__all__
    assert set(paceline.__all__) <= set(dir(paceline))
    with pytest.raises(AttributeError, match="has no attribute 'unheard_of'"):
        getattr(paceline, "unheard_of")  # noqa: B009
    with pytest.raises(ImportError):
        exec("from paceline import unheard_of")


HEAVY = DRIVERS | {"asyncio", "pydantic_settings", "paceline.server.settings", "paceline.slots", "orjson"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_asking_for_help_loads_next_to_nothing(arguments: list[str]) -> None:
    script = f"""
from paceline.server.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass"""
    assert loaded_after(script, HEAVY) == set()


def test_a_command_loads_itself_only() -> None:
    script = """
from paceline.server.cli import main
try:
    main(["tokens", "--help"])
except SystemExit:
    pass"""
    commands = {f"paceline.server.cli.{name}" for name in ("serve", "slots", "tokens")} | {
        command.place.partition(":")[0] for command in app_commands().values()
    }
    drivers = {"fastapi", "holidays", "psycopg", "temporalio"}
    assert loaded_after(script, commands | drivers) == {"paceline.server.cli.tokens"}


def test_help_says_what_the_commands_say_themselves() -> None:
    commands = cli.app.load_all().commands
    assert list(commands) == list(all_commands())
    for name, command in commands.items():
        assert " ".join(command.help.split()).startswith(all_commands()[name]), name


def test_choosing_a_limit_store_imports_no_driver() -> None:
    assert loaded_after("from paceline.limits.stores import limit_store", DRIVERS) == set()
