"""What an application brings while it runs, and a service that has none."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.app_environments import MAIN, ROOT, environment

INVOICES = """
from contextlib import asynccontextmanager

from fastapi import APIRouter, Request
from prometheus_client import Gauge

from paceline.errors import ConfigurationError
from paceline.server.apps import App
from paceline.server.cli.doctor.finding import Finding
from paceline.server.http.services import services_of
from paceline.server.opened_apps import AppContext, OpenedApp
from paceline.server.shapes.search import Found

app = App(
    name="invoices",
    after=("books",),
    check="invoices:check",
    open="invoices:open_app",
    roles={"printer": "invoices:print_all"},
    item_types=("INVOICE",),
    routes="invoices:router",
    audited=("/invoices/.*/send",),
    cancels={"invoices": "DELETE /invoices/{id}"},
    logged_path="invoices:logged_path",
    finders={"invoice": "invoices:find"},
    pages="invoice_pages:static",
    page_scripts=("invoices.js",),
    doctor="invoices:examine",
    prune="invoices:prune",
)
books = App(name="books", open="invoices:open_books")
router = APIRouter()


@router.get("/invoices/{name}")
async def show(name: str, request: Request) -> dict[str, str]:
    return {"invoice": name, "books": services_of(request).app("invoices")["books"]}


def check(settings) -> None:
    if settings.port == 1:
        raise ConfigurationError("invoices.printer", "is out of paper")


@asynccontextmanager
async def open_books(context: AppContext):
    yield OpenedApp(parts="the books")


@asynccontextmanager
async def open_app(context: AppContext):
    if context.registry is not None:
        Gauge("invoices_open", "Open invoices.", registry=context.registry).set(3)

    async def reach() -> str:
        return "fine"

    yield OpenedApp(parts={"books": context.parts_of("books")}, probes={"printer": reach}, call_limits={"printer": 7})


async def print_all(settings, stop, *, registry=None) -> None:
    print("printing", flush=True)
    stop.set()


async def find(parts, text: str, limit: int) -> list[Found]:
    return [Found.of(kind="invoice", id=f"{text}-1", exact=False, href=f"/invoices/{text}-1")]


def logged_path(path: str) -> str:
    return path.replace("secret", "…")


async def examine(settings) -> list[Finding]:
    return [Finding("printer", True, "has paper")]


async def prune(settings, before, now) -> dict[str, int]:
    return {"invoices": 4}
"""
ASK = """
import json
import shutil
import sqlite3
from contextlib import closing
from fastapi.testclient import TestClient
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
with TestClient(create_app(Settings.load(database_url="memory://")), base_url="http://localhost") as client:
    answers = {}
    for path in sys.argv[1:]:
        answer = client.get(path)
        answers[path] = [answer.status_code, answer.text]
    print(json.dumps(answers))
"""


def ask(python: Any, *paths: str) -> dict[str, tuple[int, str]]:
    done = python(ASK, *paths)
    assert done.returncode == 0, done.stderr
    return {path: tuple(answer) for path, answer in json.loads(done.stdout.splitlines()[-1]).items()}


def with_invoices(folder: Path) -> Any:
    python = environment(folder, own={"invoices": "invoices:app", "books": "invoices:books"})
    (folder / "invoices.py").write_text(INVOICES)
    (folder / "invoice_pages" / "static").mkdir(parents=True)
    (folder / "invoice_pages" / "__init__.py").write_text("")
    (folder / "invoice_pages" / "static" / "invoices.js").write_text("export const invoices = {title: 'Invoices'}\n")
    return python


def test_an_application_brings_routes_probes_metrics_pages_and_what_the_search_finds(tmp_path: Path) -> None:
    paths = ["/invoices/7", "/health/ready", "/metrics", "/console/pages", "/console/invoices.js", "/api/v1/search?q=i"]
    shown = ask(with_invoices(tmp_path), *paths)
    assert {status for status, _ in shown.values()} == {200}, shown
    assert json.loads(shown["/invoices/7"][1]) == {"invoice": "7", "books": "the books"}
    assert "printer" in {check["name"] for check in json.loads(shown["/health/ready"][1])["checks"]}
    assert "invoices_open 3.0" in shown["/metrics"][1]
    assert json.loads(shown["/console/pages"][1]) == ["invoices.js"]
    assert "Invoices" in shown["/console/invoices.js"][1]
    found = json.loads(shown["/api/v1/search?q=i"][1])
    assert "invoice" in found["searched"]
    assert [result["id"] for result in found["results"]] == ["i-1"]


def test_an_application_brings_a_role_a_check_findings_and_a_prune(tmp_path: Path) -> None:
    python = with_invoices(tmp_path)
    assert "printing\n" in python(MAIN, "worker", "printer").stdout
    unknown = python(MAIN, "worker", "painter")
    assert (unknown.returncode, "printer" in unknown.stderr) == (2, True), unknown.stderr
    refused = python(MAIN, "serve", "--port", "1")
    assert (refused.returncode, refused.stderr) == (2, "paceline: invoices.printer: is out of paper\n")
    assert "ok    printer: has paper\n" in python(MAIN, "doctor").stdout
    assert json.loads(python(MAIN, "prune", "--before", "P30D", "--json").stdout)["invoices"] == 4


def test_without_applications_the_service_starts_and_has_none_of_their_parts(tmp_path: Path) -> None:
    paths = [
        "/health/ready",
        "/",
        "/console/pages",
        "/console/payments.js",
        "/api/v1/payments",
        "/metrics",
        "/openapi.json",
    ]
    python = environment(tmp_path)
    shown = ask(python, *paths)
    assert [shown[path][0] for path in paths] == [200, 200, 200, 404, 404, 200, 200], shown
    assert json.loads(shown["/console/pages"][1]) == []
    for path in ("/", "/metrics", "/openapi.json"):
        assert "payment" not in shown[path][1].lower(), path
    assert "sender" not in python(MAIN, "worker", "--help").stdout
    assert "payments" not in python(MAIN, "--help").stdout
    assert python(MAIN, "doctor").returncode == 0
    assert python(MAIN, "prune", "--before", "P30D").returncode == 0
    assert python(MAIN, "slots", "assign", "--event", "one", "--at", "2030-01-01T00:00:00Z").returncode == 0


def test_without_applications_each_of_their_routes_and_scripts_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "none").mkdir()
    none, every = environment(tmp_path / "none"), environment(tmp_path / "all", "payments", "sms")
    alone, with_all = (
        json.loads(ask(python, "/openapi.json")["/openapi.json"][1])["paths"] for python in (none, every)
    )
    routes = [path.replace("{", "").replace("}", "") for path in with_all if path not in alone]
    scripts = [f"/console/{script.name}" for script in ROOT.glob("apps/*/src/*/service/console/*.js")]
    assert len(routes) > 10
    assert {"/console/payments.js", "/console/messages.js"} <= {*scripts}
    assert {path: status for path, (status, _) in ask(none, *routes, *scripts).items() if status != 404} == {}


def test_payments_need_no_sms(tmp_path: Path) -> None:
    shown = ask(environment(tmp_path, "payments"), "/health/ready", "/console/pages", "/api/v1/payments")
    assert {status for status, _ in shown.values()} == {200}, shown
    assert json.loads(shown["/console/pages"][1]) == ["payments.js", "feeds.js"]


def tables(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as file:
        return {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_only_installed_applications_have_tables(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "with sms").mkdir()
    database = tmp_path / "alone" / "paceline.db"
    without, with_sms = environment(tmp_path / "alone"), environment(tmp_path / "with sms", "sms")
    assert without(MAIN, "migrate", "up").stdout == "applied 0001_initial\n"
    words = {name.removeprefix("paceline_").partition("_")[0] for name in tables(database)}
    assert words & {"payment", "payments", "feed", "notification", "sms"} == set()
    before = tables(database)

    shutil.copy(database, tmp_path / "with sms")
    assert with_sms(MAIN, "migrate", "status").returncode == 1
    assert with_sms(MAIN, "migrate", "up").stdout == "applied 0001_sms\n"
    added = tables(tmp_path / "with sms" / "paceline.db") - before
    assert "paceline_notification_message" in added
    assert {name.split("_")[1] for name in added} == {"notification", "sms"}


def test_an_application_brings_tables_by_migrations_of_its_own(tmp_path: Path) -> None:
    python = environment(tmp_path, own={"bills": "bills:app"})
    (tmp_path / "bills.py").write_text(
        "from pathlib import Path\n"
        "from paceline.server.apps import App\n"
        "from paceline.sql.migrate import Steps\n"
        "app = App(name='bills', migrations='bills:steps')\n"
        "steps = Steps(Path(__file__).with_name('bill_steps'), oldest_runnable='0001_bills', name='bills')\n"
    )
    (tmp_path / "bill_steps").mkdir()
    (tmp_path / "bill_steps" / "0001_bills.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        "revision, down_revision = '0001_bills', None\n"
        "def upgrade(): op.create_table('paceline_bill', sa.Column('number', sa.String(32), primary_key=True))\n"
        "def downgrade(): op.drop_table('paceline_bill')\n"
    )
    assert python(MAIN, "config", "set", "any", "--max", "1", "--window", "PT1S").returncode == 0
    made = {"paceline_bill", "paceline_bills_revision", "paceline_bills_version"}
    assert tables(tmp_path / "paceline.db") >= made
    assert "paceline_bill" in python(MAIN, "migrate", "sql", "--dialect", "oracle").stdout
    assert "0001_bills" in python(MAIN, "migrate", "down", "--of", "bills").stdout
    assert "paceline_bill" not in tables(tmp_path / "paceline.db")
