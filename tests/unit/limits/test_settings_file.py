"""`from_settings`: a limiter from `paceline.toml` and `PACELINE_…`, with nothing of the server."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from paceline import AsyncLimiter, Limiter
from paceline.errors import ConfigurationError, NotFound
from paceline.limits.model import Reason
from paceline.limits.settings_file import TOP, limiter_options
from paceline.testing import FakeClock, eventually
from tests.unit.limits.both import START

FILE = """
[limits]
on_error = "closed"
deadline_seconds = 2
lease_seconds = 0.5
lease_most = 7

[plans]
free = "2/minute"
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PACELINE_"):
            monkeypatch.delenv(name)
    return tmp_path


def write(directory: Path, text: str, version: int = 1) -> None:
    (directory / "paceline.toml").write_text(text)
    os.utime(directory / "paceline.toml", ns=(version, version))


@pytest.mark.parametrize(
    ("file", "environment", "store"),
    [
        ("", {}, "memory://"),
        ("redis_url = 'redis://a'", {}, "redis://a"),
        ("redis_url = 'redis://a'", {"PACELINE_REDIS_URL": "redis://b"}, "redis://b"),
        ("database_url = 'sqlite:///x.db'", {}, "sqlite:///x.db"),
        ("redis_url = 'redis://a'\ndatabase_url = 'postgresql://d'", {}, "redis://a"),
        (
            "redis_url = 'redis://a'\ndatabase_url = 'postgresql://d'",
            {"PACELINE_LIMITS_STORE": "database"},
            "postgresql://d",
        ),
        ("redis_url = 'redis://a'\n[limits]\nstore = 'memory'", {}, "memory://"),
        ("port = 8080\nhost = 'x'\n[http]\nworkers = 2", {}, "memory://"),
    ],
)
def test_the_store_is_the_services(directory: Path, file: str, environment: dict[str, str], store: str) -> None:
    write(directory, file)
    assert limiter_options(None, environment)["store"] == store


def test_failure_policy_deadline_and_leases_are_read(directory: Path) -> None:
    write(directory, FILE)
    options = limiter_options(None, {"paceline_limits_on_error": "fallback", "PACELINE_LIMITS_LEASE_SHARE": "0.5"})
    assert (str(options["on_error"]), options["deadline"]) == ("fallback", 2)
    lease = options["lease"]
    assert (lease.longest, lease.share, lease.most) == (0.5, 0.5, 7)


@pytest.mark.parametrize(
    ("file", "environment", "named"),
    [
        ("[limits]\nstore = 'disk'", {}, "limits.store"),
        ("[limits]\non_error = 'panic'", {}, "limits.on_error"),
        ("", {"PACELINE_LIMITS_ON_ERROR": "panic"}, "PACELINE_LIMITS_ON_ERROR"),
        ("", {"PACELINE_LIMITS_DEADLINE_SECONDS": "soon"}, "PACELINE_LIMITS_DEADLINE_SECONDS"),
        ("[limits]\ndeadline_seconds = true", {}, "limits.deadline_seconds"),
        ("[limits]\nlease_seconds = 61", {}, "limits.lease_seconds"),
        ("[limits]\nlease_seconds = 1\nlease_share = 2", {}, "limits.lease_share"),
        ("[limits]\nlease_seconds = 1\nlease_most = 1.5", {}, "limits.lease_most"),
        ("[limits]\non_eror = 'open'", {}, "limits.on_eror"),
        ("limits = 5", {}, "limits"),
        ("redis_url = 5", {}, "redis_url"),
        ("[limits]\nstore = 'database'", {}, "database_url"),
        ("[plans]\nfree = '2/fortnight'", {}, "plans.free.rate"),
        ("plans = 'free'", {}, "plans"),
        ("[plans", {}, "paceline.toml"),
        ("", {"PACELINE_SETTINGS_FILE": "missing.toml"}, "missing.toml"),
    ],
)
def test_a_wrong_setting_is_named_as_it_was_given(
    directory: Path, file: str, environment: dict[str, str], named: str
) -> None:
    write(directory, file)
    with pytest.raises(ConfigurationError) as caught:
        limiter_options(None, environment)
    assert caught.value.field == named


async def test_a_limiter_decides_by_the_file_and_follows_it(directory: Path) -> None:
    write(directory, FILE.replace("lease", "# lease"))
    clock = FakeClock(START)
    limiter = Limiter.from_settings(clock=clock)
    assert [limiter.acquire("u", "free").allowed for _ in range(3)] == [True, True, False]
    write(directory, "[plans]\nfree = '5/minute'\ngold = '1/day'", version=2)
    clock.advance(2)
    limiter.acquire("u", "free")  # starts the reload
    await eventually(lambda: "gold" in limiter.plans)
    assert limiter.acquire("u", "gold").allowed
    # A file that turns bad changes nothing.
    write(directory, "[plans]\nfree = 'many'", version=3)
    clock.advance(2)
    assert limiter.acquire("v", "free").limit == 5
    with pytest.raises(NotFound):
        limiter.acquire("u", "silver")
    limiter.close()


async def test_so_does_an_async_one_and_options_come_first(directory: Path) -> None:
    write(directory, "redis_url = 'redis://127.0.0.1:1'\n[limits]\non_error = 'closed'\n[plans]\nfree = '2/minute'")
    async with AsyncLimiter.from_settings() as limiter:
        assert (await limiter.acquire("u", "free")).reason is Reason.FAIL_CLOSED
    async with AsyncLimiter.from_settings(directory / "paceline.toml", store="memory://") as limiter:
        assert (await limiter.acquire("u", "free")).remaining == 1


def test_a_folder_in_the_place_of_the_file_is_an_error(directory: Path) -> None:
    (directory / "paceline.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"paceline\.toml: can't be read: Is a directory"):
        Limiter.from_settings()


def test_without_any_setting_there_is_a_limiter_in_memory() -> None:
    assert Limiter.from_settings().acquire("u", "1/minute").allowed


def test_nothing_of_the_server_is_imported(directory: Path) -> None:
    write(directory, FILE)
    program = (
        "import sys; from paceline import Limiter; assert Limiter.from_settings().acquire('u', 'free').allowed; "
        "print([name for name in sys.modules if name.startswith(('paceline.server', 'fastapi', 'pydantic', 'sqlal'))])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")


def test_the_service_takes_the_same_file(directory: Path) -> None:
    settings: Any = pytest.importorskip("paceline.server.settings")
    write(directory, FILE)
    assert settings.Settings.load().limits.lease_seconds == 0.5


def test_the_names_at_the_top_of_the_file_are_the_services() -> None:
    from paceline.server.apps import installed_apps
    from paceline.server.settings import Settings

    assert {*Settings.model_fields, "plans"} - {app.name for app in installed_apps()} == TOP


def test_an_application_that_is_installed_has_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "paceline.toml"
    file.write_text("[sms]\nproviders = 'console'\n")
    if not metadata.entry_points(group="paceline.apps", name="sms"):
        pytest.skip("paceline-sms is not installed")
    assert limiter_options(file, {})["store"] == "memory://"
    file.write_text("[smss]\nproviders = 'console'\n")
    with pytest.raises(ConfigurationError, match="is no setting"):
        limiter_options(file, {})


@pytest.mark.parametrize(("text", "name"), [('[limit]\non_error = "closed"', "limit"), ("plan = 1", "plan")])
def test_a_mistyped_name_at_the_top_is_refused(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "paceline.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"did you mean {name}s?") as caught:
        limiter_options(file, {})
    assert caught.value.field == name
