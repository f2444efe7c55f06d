"""What a program begins with can be imported first, and loads nothing that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import paceline.server.cli
from paceline.server.apps import app_commands

pytestmark = pytest.mark.full

FIRST = """
import importlib, os, sys
import alembic.command, fastapi, httpx2, psycopg, pydantic, sqlalchemy.ext.asyncio, temporalio.worker, uvicorn
assert "paceline" not in sys.modules
for name in sys.argv[1:]:
    if os.fork() == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.wait()
"""

OTHERS = [command.place.partition(":")[0] for command in app_commands().values()]
OTHERS += ["paceline.server.worker", "paceline.server.http.app", "paceline_payments.downstream.server"]


def test_each_module_that_a_program_begins_with_can_be_imported_first() -> None:
    commands = [f"paceline.server.cli.{file.stem}" for file in Path(*paceline.server.cli.__path__).glob("[!_]*.py")]
    assert len(commands) > 20
    done = subprocess.run(
        [sys.executable, "-c", FIRST, *commands, *OTHERS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "")


SERVICE = """
import asyncio, sys
UNUSED = {"rich", "phonenumbers", "schwifty", "sqlalchemy.orm", "holidays", "matplotlib"}
from paceline.server import logs
from paceline.server.settings import Settings
settings = Settings.load(database_url=sys.argv[1])
logs.configure(settings)
from paceline.server.http.app import create_app
app = create_app(settings)

async def serve():
    async with app.router.lifespan_context(app):
        print(*sorted(UNUSED & set(sys.modules)))

asyncio.run(serve())
"""


def test_an_idle_service_loads_no_package_that_it_does_not_use(tmp_path: Path) -> None:
    """Some are installed here, for other programs, and would be loaded if they are found."""
    url = f"sqlite:///{tmp_path / 'idle.db'}"
    done = subprocess.run([sys.executable, "-c", SERVICE, url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
