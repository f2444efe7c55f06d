"""`pip install paceline`: the built wheels in fresh environments, without any extra and with each one alone."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import tomllib
from contextlib import closing
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.acceptance.installed import ROOT, Installed, build_wheels, find_python
from tests.acceptance.service import until

PYTHONS = ("3.11", "3.13", "3.14")
MAX_MEGABYTES = 2.0
"""Of a plain install, as a disk counts them."""

JOURNEY = """
import asyncio, os, sys, tempfile
import paceline

os.chdir(tempfile.mkdtemp(dir="."))
DRIVERS = {"alembic", "confluent_kafka", "fastapi", "greenlet", "hiredis", "holidays", "httpx2", "matplotlib",
           "opentelemetry", "oracledb", "psycopg", "pydantic", "schwifty", "sqlalchemy", "starlette",
           "temporalio", "uvicorn"}
from paceline import *  # which has all names here
assert not DRIVERS & set(sys.modules), DRIVERS & set(sys.modules)

from paceline.server.wiring.dispatch import local_dispatch
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.registry import Domain

def limits():
    for url in ("memory://", "sqlite:///journey.db"):
        with Limiter(url, plans=[Plan("two", FixedWindow(limit=2, window="P1D"))]) as limiter:
            assert [limiter.acquire("user", plans=["two"]).allowed for _ in range(3)] == [True, True, False]

async def main():
    for url in ("memory://", "sqlite:///journey.db"):
        async with AsyncLimiter(url, plans=[Plan("one", FixedWindow(limit=1, window="P1D"))]) as limiter:
            assert [(await limiter.acquire("other", plans=["one"])).allowed for _ in range(2)] == [True, False]
    async with SlotScheduler.open("sqlite:///journey.db") as slots:
        await slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
        slot = await slots.assign("pay-123", "default", "2030-03-01T16:00:00Z")
        assert slot.window_start.isoformat() == "2030-03-01T16:00:00+00:00"
    done = asyncio.Event()
    async def send(item_id, context):
        assert (item_id, context) == ("inv-1", {"total": "12.00"})
        done.set()
    async with DispatchQueue.open("sqlite:///journey.db") as queue:
        domain = Domain(DispatchConfig(item_type="INVOICE"), execute=send)
        async with local_dispatch(queue, [domain]):
            await queue.enqueue("INVOICE", "inv-1", context={"total": "12.00"})
            await asyncio.wait_for(done.wait(), 30)

limits()
asyncio.run(main())
assert not any(name.startswith("paceline.testing") for name in sys.modules)
"""

FRAMEWORKS = ["fastapi", "starlette", "flask", "django", "drf", "celery", "litestar", "quart", "aiohttp", "requests"]
"""The integrations that need an extra of their name."""

NO_ANSWER = """
import asyncio
from paceline import SlotScheduler, StoreError
async def main():
    try:
        async with SlotScheduler.open("{url}"):
            pass
    except StoreError:
        return  # the driver is there, and says that nobody answers
    raise AssertionError("somebody answered")
asyncio.run(main())
"""

ALONE = {
    "calendars": "from paceline import Calendar\nCalendar.from_json({'zone': 'Europe/Berlin', 'holidays': 'DE'})",
    "encryption": "from paceline import Tasks\nTasks('memory://', encryption_keys=['A' * 43 + '='])",
    "grpc": "import paceline.integrations.grpc, grpc_health.v1.health",
    "kafka": "import paceline.kafka.log, paceline.kafka.topics",
    "oidc": "from paceline.server.settings import Settings\nfrom paceline.server.wiring.access import oidc_provider\n"
    "chosen = {'issuer': 'https://x.example', 'client_id': 'x', 'scopes': {'ops': 'admin'}}\n"
    "assert oidc_provider(Settings(oidc=chosen))",
    "oracle": NO_ANSWER.format(url="oracle://u:p@127.0.0.1:1/x"),
    "payments": "import paceline_payments.intake, paceline_payments.downstream.client",
    "periodic": "from paceline import Tasks\nTasks('memory://').periodic(cron='0 16 * * MON-FRI')",
    "plot": "import matplotlib.figure",
    "postgres": NO_ANSWER.format(url="postgresql://u:p@127.0.0.1:1/x"),
    "redis": "import hiredis\nfrom paceline.redis.replies import ReplyReader, new_reader\n"
    "assert not isinstance(new_reader(None), ReplyReader)",
    "sms": "from paceline_sms import Accepted\nfrom paceline_sms.recipients import checked_phone\n"
    "assert checked_phone('+49 170 1234567') == '+491701234567'",
    "temporal": "import paceline.dispatch.engines.temporal.worker_group, paceline.dispatch.engines.temporal.engine",
    "timezones": "import zoneinfo\nzoneinfo.reset_tzpath([])\nfrom paceline import FixedWindow\n"
    "FixedWindow(5, calendar='day', zone='Europe/Berlin')",
    "traces": "from paceline.server.settings import Settings\nfrom paceline import tracing\n"
    "from paceline.server.wiring.telemetry import collect_traces\ncollect_traces(Settings(traces='otlp'))\n"
    "assert tracing.is_on()",
}
"""What each extra is for, without a server to talk to."""


ENVOY = (
    "import paceline.server.envoy.messages, paceline.server.grpc\n"
    "from paceline.server.envoy.config_file import parse_domain\nassert parse_domain('domain: d').path == 'd'"
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of this tree."""
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(folder)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Installed:
    """Becomes what a test wants it to be."""
    return Installed(tmp_path_factory.mktemp("environment"), wheels)


@pytest.fixture
def core(environment: Installed) -> Installed:
    """`pip install paceline`, and nothing else."""
    return environment.become()


@pytest.fixture
def queue(environment: Installed) -> Installed:
    """`pip install 'paceline[queue]'`."""
    return environment.become("queue")


def works(installed: Installed, script: str, **variables: str) -> None:
    ended = installed.python(script, **variables)
    assert ended.returncode == 0, ended.stderr


def documented_packages() -> dict[str, int]:
    """How many packages an installation with each extra has, by the table of the guide."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \| [\d.]+ \|$", (ROOT / "docs/howto/install.md").read_text(), re.M)
    return {extra: int(packages) for extra, packages in rows}


# -- on every Python ---------------------------------------------------------------------------------------------------

LIMITS = """
import os
from paceline import FixedWindow, Limiter, Plan

with Limiter(os.environ["STORE"], plans=[Plan("two", FixedWindow(limit=2, window="P1D"))]) as limiter:
    key = os.environ["KEY"]
    assert [limiter.acquire(key, plans=["two"]).allowed for _ in range(3)] == [True, True, False]
    limiter.reset(key, plans=["two"])
"""
QUEUE = """
import asyncio
from paceline import DispatchQueue, SlotScheduler, WindowPolicy

URL = "sqlite:///paceline.db"

async def main():
    async with SlotScheduler.open(URL) as slots, DispatchQueue.open(URL) as queue:
        await slots.configure("default", WindowPolicy(max_per_window=100, window="PT4S"))
        slot = await slots.assign("pay-1", "default", "2030-03-01T16:00:00Z")
        await queue.configure("PAY")
        await queue.enqueue("PAY", "pay-1", slot=slot)

asyncio.run(main())
"""
SERVER = """
import asyncio
from paceline.server.http.app import create_app
from paceline.server.settings import Settings

app = create_app(Settings.load(database_url="sqlite:///service.db"))

async def main():
    async with app.router.lifespan_context(app):
        pass

asyncio.run(main())
"""


@pytest.fixture(scope="module", params=PYTHONS)
def on_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Installed:
    """An environment of each Python."""
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"there is no python{request.param} here")
    return Installed(tmp_path_factory.mktemp("python"), wheels, python)


def test_a_plain_install_is_one_small_package(on_python: Installed, redis_url: str) -> None:
    core = on_python.become()
    assert core.packages() == {"paceline"}
    assert core.megabytes() <= MAX_MEGABYTES
    works(core, LIMITS, STORE="memory://", KEY="me")
    works(core, LIMITS, STORE=redis_url, KEY="core")
    assert core.paceline("--version").stdout.startswith("paceline ")


def test_redis_adds_its_parser(on_python: Installed, redis_url: str) -> None:
    installed = on_python.become("redis")
    assert installed.packages() == {"paceline", "hiredis"}
    works(installed, LIMITS, STORE=redis_url, KEY="extra")


def test_the_queue_takes_an_item(on_python: Installed) -> None:
    installed = on_python.become("queue")
    assert {"paceline", "paceline-queue", "sqlalchemy", "alembic", "pydantic"} <= installed.packages()
    works(installed, QUEUE)


def test_the_service_starts(on_python: Installed) -> None:
    works(on_python.become("server"), SERVER)


# -- with the queue ----------------------------------------------------------------------------------------------------


def test_an_install_with_the_queue_limits_books_and_dispatches(queue: Installed) -> None:
    works(queue, JOURNEY)
    assert len(queue.packages()) == documented_packages()["queue"]


def test_the_command_line_with_the_queue(queue: Installed) -> None:
    result = queue.paceline("--help")
    assert result.returncode == 0
    assert "slots" in result.stdout
    assert "Not installed: serve (pip install 'paceline[server]')" in " ".join(result.stdout.split())
    configured = queue.paceline("config", "set", "default", "--max", "7", "--window", "PT4S")
    assert configured.returncode == 0, configured.stderr
    assert configured.stderr == ""
    others = (
        ["slots", "assign", "--event", "pay-124", "--at", "2030-03-01T16:00:00Z"],
        ["plans", "set", "gold", "--capacity", "1", "--per-second", "0.001"],
        ["limits", "acquire", "user:1", "--plan", "gold"],
        ["forecast", "--events", "5"],
        ["tokens", "list"],
        ["migrate", "status"],
        ["prune", "--before", "P30D"],
        ["doctor"],
    )
    for ended in (queue.paceline(*arguments) for arguments in others):
        assert ended.returncode == 0, ended
        assert ended.stderr == "", ended


def test_the_worker_with_the_queue_runs_an_item(queue: Installed) -> None:
    (queue.directory / "letters.py").write_text(
        "from pathlib import Path\n"
        "from paceline import Tasks, current_task\n"
        "tasks = Tasks('sqlite:///paceline.db')\n"
        "@tasks.task(name='LETTER')\n"
        "def send(to: str) -> None:\n"
        "    Path(current_task().item_id).write_text(to)\n"
    )
    queued = queue.python(
        "import asyncio\nfrom paceline import DispatchQueue\n"
        "async def main():\n"
        "    async with DispatchQueue.open('sqlite:///paceline.db') as queue:\n"
        "        await queue.configure('LETTER')\n"
        "        await queue.enqueue('LETTER', 'letter-1', context={'to': 'you'})\n"
        "asyncio.run(main())"
    )
    assert queued.returncode == 0, queued.stderr
    letter = queue.directory / "letter-1"
    with running(queue, "worker", "--domain", "letters:tasks") as worker:
        until(lambda: (letter.exists() and letter.read_text() == "you") or worker.poll() is not None)
        assert letter.exists(), (queue.directory / "worker.log").read_text()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert queue.paceline("queue", "stats", "LETTER").returncode == 0


TEN_LINES = """
from decimal import Decimal

from paceline import Tasks

tasks = Tasks("sqlite:///paceline.db")          # or postgresql://…

@tasks.task(retries=5, timeout=30, rate="50/second")
async def send_invoice(invoice_id: str, total: Decimal) -> str: ...

async def main() -> None:
    async with tasks:
        later = send_invoice.options(key="inv-1", at="2030-03-01T16:00:00Z")
        await later.enqueue("inv-1", total=Decimal("12.00"))
        await send_invoice.options(key="inv-2").enqueue("inv-2", total=Decimal("12.00"))
"""


def test_the_first_lines_of_a_user_work(queue: Installed) -> None:
    (queue.directory / "my_app.py").write_text(TEN_LINES)
    queued = queue.python("import asyncio, my_app; asyncio.run(my_app.main())")
    assert queued.returncode == 0, queued.stderr
    with running(queue, "worker", "my_app:tasks") as worker:
        until(lambda: status(queue, "inv-2") == "COMPLETED" or worker.poll() is not None)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    for item, expected in (("inv-1", "READY"), ("inv-2", "COMPLETED")):
        assert f"status: {expected}" in queue.paceline("queue", "show", "SEND_INVOICE", item).stdout


def status(queue: Installed, item: str) -> str:
    """Read from the file: each command would load the whole of paceline first."""
    with closing(sqlite3.connect(queue.directory / "paceline.db", timeout=30)) as database:
        query = "SELECT queue_status FROM paceline_dispatch_queue WHERE item_id = ?"
        return str(database.execute(query, [item]).fetchone()[0])


LACKING: list[tuple[list[str], dict[str, str], str]] = [
    (["serve"], {}, "server"),
    (["worker", "--metrics-port", "0"], {}, "server"),
    (["worker"], {"PACELINE_LOG_FORMAT": "json"}, "server"),
    (["worker"], {"PACELINE_TEMPORAL_ADDRESS": "127.0.0.1:1"}, "temporal"),
    (["slots", "show", "pay-1"], {"PACELINE_DATABASE_URL": "postgresql://127.0.0.1:1/x"}, "postgres"),
    (["slots", "show", "pay-1"], {"PACELINE_DATABASE_URL": "oracle://127.0.0.1:1/x"}, "oracle"),
    (["slots", "show", "pay-1"], {"PACELINE_TRACES": "console"}, "traces"),
    (["forecast", "--events", "5", "--plot", "feed.png"], {}, "plot"),
    (["config", "set", "x", "--max", "1", "--window", "PT4S", "--calendar", "holidays.json"], {}, "calendars"),
]
"""Commands and variables, and the extra without which they do nothing."""


def test_a_command_says_which_extra_it_lacks(queue: Installed) -> None:
    (queue.directory / "holidays.json").write_text('{"zone": "Europe/Berlin", "holidays": "DE"}')
    assert_lacking(queue, LACKING)


def test_without_the_applications_there_is_no_word_of_them(queue: Installed) -> None:
    listed = queue.paceline("--help").stdout
    for command in ("payments", "demo", "sms"):
        assert command not in listed.split()
        unknown = queue.paceline(command)
        assert (unknown.returncode, "No such command" in unknown.stderr) == (2, True), unknown


def test_the_simulated_bank_says_which_extra_it_lacks(environment: Installed) -> None:
    ended = environment.become("payments").python(
        "import runpy; runpy.run_module('paceline_payments.downstream', run_name='__main__')"
    )
    needs = "python -m paceline_payments.downstream needs: pip install 'paceline[server]'\n"
    assert (ended.returncode, ended.stderr) == (2, needs)


def assert_lacking(installed: Installed, expected: list[tuple[list[str], dict[str, str], str]]) -> None:
    """Each command ends with the name of the extra that it needs, and nothing else."""
    for arguments, variables, extra in expected:
        ended = installed.paceline(*arguments, **variables)
        assert ended.stderr == f"paceline {arguments[0]} needs: pip install 'paceline[{extra}]'\n"
        assert ended.returncode == 2


def test_an_error_names_the_missing_extra(queue: Installed) -> None:
    script = (
        f"FRAMEWORKS = {FRAMEWORKS}"
        + """
import asyncio, importlib
from paceline import *

def print_error(attempt):
    try:
        attempt()
    except ConfigurationError as error:
        print(error)
    else:
        print("nothing was said")

async def opened(opening):
    async with opening:
        pass

print_error(lambda: Limiter("postgresql://h/x"))
print_error(lambda: AsyncLimiter("postgresql://h/x"))
for url in ("postgresql://h/x", "oracle://h/x"):
    print_error(lambda: asyncio.run(opened(SlotScheduler.open(url))))
    print_error(lambda: asyncio.run(opened(DispatchQueue.open(url))))
print_error(lambda: Calendar.from_json({"zone": "Europe/Berlin", "holidays": "DE"}))
print_error(lambda: Tasks("memory://").periodic(cron="0 16 * * *"))
print_error(lambda: Tasks("memory://", encryption_keys=["A" * 43 + "="]))
for name in FRAMEWORKS:
    print_error(lambda: importlib.import_module(f"paceline.integrations.{name}"))
Calendar.from_json({"zone": "Europe/Berlin"})
"""
    )
    ended = queue.python(script)
    assert ended.returncode == 0, ended.stderr
    named = re.findall(r"^.+ needs: pip install 'paceline\[(\w+)\]'$", ended.stdout, re.MULTILINE)
    others = ["calendars", "periodic", "encryption", *FRAMEWORKS]
    assert named == ["postgres"] * 4 + ["oracle"] * 2 + others, ended.stdout


# -- with extras -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", sorted(ALONE))
def test_an_extra_alone(environment: Installed, extra: str) -> None:
    installed = environment.become(extra)
    works(installed, ALONE[extra])
    assert len(installed.packages()) == documented_packages()[extra]


def test_the_server_serves(environment: Installed) -> None:
    server = environment.become("server")
    works(server, JOURNEY)
    assert len(server.packages()) == documented_packages()["server"]
    with running(server, "serve", "--port", "0") as process:
        log = server.directory / "serve.log"
        until(lambda: "listening on" in log.read_text() or process.poll() is not None)
        found = re.search(r"listening on (\S+)", log.read_text())
        assert found is not None, log.read_text()
        vendor = [f"/console/vendor/uPlot.{name}" for name in ("esm.js", "min.css", "LICENSE.txt")]
        for path in ("/health/live", "/health/ready", "/docs", "/", *vendor):
            assert httpx.get(found[1] + path).status_code == 200, path
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_server_says_which_extra_its_settings_lack(environment: Installed) -> None:
    server = environment.become("server")
    serve = ["serve", "--port", "0"]
    lacking = [
        (serve, {"PACELINE_TEMPORAL_ADDRESS": "127.0.0.1:1"}, "temporal"),
        (serve, {"PACELINE_KAFKA_BOOTSTRAP": "127.0.0.1:1"}, "kafka"),
        (serve, {"PACELINE_TRACES": "otlp"}, "traces"),
        (serve, {"PACELINE_GRPC_PORT": "0"}, "grpc"),
    ]
    assert_lacking(server, lacking)


def test_all_of_it(environment: Installed) -> None:
    """One environment for everything: the extras are compatible, and no missing one is reported."""
    installed = environment.become("all")
    works(installed, "\n".join([JOURNEY, ENVOY, *ALONE.values()]))
    assert len(installed.packages()) == documented_packages()["all"]
    assert installed.paceline("demo", "--payments", "10", "--json").returncode == 0
    assert installed.paceline("doctor").returncode == 0


def test_every_extra_is_walked() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    frameworks = {*FRAMEWORKS, "httpx"}
    assert set(extras) == {*ALONE, *frameworks, "queue", "server", "console", "all", "testing"}
    assert extras["console"] == ["paceline[server]"]
    everything = set(extras["all"][0].removeprefix("paceline[").removesuffix("]").split(","))
    assert everything == {*ALONE, "queue", "server", "console"} - {"timezones"}  # which `queue` brings
    assert set(documented_packages()) == {*ALONE, "queue", "server", "all"}


class running:  # noqa: N801 - used as a function
    """A command that runs until SIGTERM; its output is in a file of its name."""

    def __init__(self, installed: Installed, *arguments: str) -> None:
        self._output = (installed.directory / f"{arguments[0]}.log").open("w")
        self._process = subprocess.Popen(
            installed.command(*arguments),
            cwd=installed.directory,
            env=installed.environment(PYTHONUNBUFFERED="1"),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
