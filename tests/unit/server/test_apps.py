"""Applications are found by their entry points: in a process whose environment has them, and in no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app_environments import environment

HELP = "from paceline.__main__ import main\nmain()"
GREETING = """
import click
from fastapi import APIRouter
from paceline.server.apps import App, AppCommand

app = App(
    name="greeting",
    routes="greeting:router",
    commands={"greet": AppCommand("Greet somebody.", "greeting:greet")},
)
router = APIRouter()

@router.get("/greeting")
async def greeting(name: str) -> dict[str, str]:
    return {"text": f"hello {name}"}

@click.command("greet")
@click.argument("name")
def greet(name: str) -> None:
    "Greet somebody."
    print("hello", name)
"""
ASK = """
import sys
from fastapi.testclient import TestClient
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
with TestClient(create_app(Settings.load(database_url="memory://")), base_url="http://localhost") as client:
    answer = client.get("/greeting?name=ada")
    print(answer.status_code, answer.text)
"""


def test_commands_of_an_application_are_there_with_it(tmp_path: Path) -> None:
    python = environment(tmp_path, own={"greeting": "greeting:app"})
    (tmp_path / "greeting.py").write_text(GREETING)
    assert "greet        Greet somebody\n" in python(HELP, "--help").stdout
    assert python(HELP, "greet", "ada").stdout == "hello ada\n"
    assert "greet" in python(HELP, "gret").stderr


def test_routes_of_an_application_are_there_with_it(tmp_path: Path) -> None:
    python = environment(tmp_path, own={"greeting": "greeting:app"})
    (tmp_path / "greeting.py").write_text(GREETING)
    done = python(ASK)
    assert done.stdout.endswith('200 {"text":"hello ada"}\n'), done.stderr


def test_help_imports_no_part_of_an_application(tmp_path: Path) -> None:
    python = environment(tmp_path, own={"late": "late:app"})
    (tmp_path / "late.py").write_text(
        "from paceline.server.apps import App, AppCommand\n"
        "app = App(name='late', commands={'late': AppCommand('Come late.', 'missing_module:late')})\n"
    )
    done = python(HELP, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Come late" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no licence')", "the application broken (broken:app) can't be loaded: no licence"),
        ("app = 5", "broken:app is no App, but a int"),
    ],
)
def test_an_application_that_cant_be_loaded_is_named(tmp_path: Path, text: str, said: str) -> None:
    python = environment(tmp_path, own={"broken": "broken:app"})
    (tmp_path / "broken.py").write_text(text)
    done = python(HELP, "--help")
    assert (done.returncode, done.stderr) == (2, f"paceline: paceline.apps: {said}\n")
