"""The previous release's wheel works on a later schema, beside the version that made it: an upgrade has a way back.

The previous release is the last with a tag such as `v1.0.0` in this tree's history. Until there is one, the wheel of
this tree takes its place. The later version is this tree with one more migration, so that the two differ in any case.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from paceline.durations import format_instant
from tests import later_version
from tests.acceptance.installed import ROOT, build_wheels
from tests.acceptance.service import Service, environment, run, until

COMMON = {
    "amount": "12.34",
    "currency": "EUR",
    "payer": {"name": "Anna", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bert", "iban": "FR1420041010050500013M02606"},
}


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the modules of the previous release, as its wheel has them."""
    folder = tmp_path_factory.mktemp("previous")
    source = ROOT
    if tag := git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").decode().strip():
        source = folder / "source"
        with zipfile.ZipFile(BytesIO(git("archive", "--format", "zip", tag))) as archive:
            archive.extractall(source)
    for path in build_wheels(folder, source):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder / "modules")
    return str(folder / "modules")


def git(*words: str) -> bytes:
    """What a command of git prints; nothing, if it fails: without tags, or outside of a repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False).stdout


def soon() -> str:
    return format_instant(datetime.now(UTC) + timedelta(seconds=1))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_previous_release_works_on_a_later_schema_beside_that_version(
    previous: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    if kind == "postgresql":
        url = str(request.getfixturevalue("empty_postgres_url"))
    variables = {"PACELINE_DATABASE_URL": url, "PACELINE_LOG_LEVEL": "warning"}
    old_shell, new_shell = (
        variables | {"PYTHONPATH": path} for path in (previous, later_version.modules(tmp_path / "later"))
    )
    assert run(tmp_path, "migrate", "up", **new_shell).returncode == 0
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    assert Path(module_of(old_shell, tmp_path)).is_relative_to(previous)
    with (
        Service(folders[0], **old_shell) as old,
        Service(folders[1], **new_shell) as new,
        old.client() as before,
        new.client() as after,
    ):
        for number, client in enumerate((before, after)):
            slot = {"eventId": f"e{number}", "requestedTime": "2030-03-01T16:00:00Z"}
            assert client.post("/api/v1/slots", json=slot).status_code == 200
            payment = COMMON | {"paymentId": f"pay-{number}", "executeAt": soon()}
            assert client.post("/api/v1/payments", json=payment).status_code == 202
            user = {"userId": number + 1, "rateLimit": 5, "timeWindow": 1}
            assert client.post("/api/config", json=user).status_code == 200
            assert client.post("/api/send", json={"userId": number + 1, "message": "hello"}).status_code == 200
            plan = {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1}
            assert client.put(f"/admin/plans/p{number}", json=plan).status_code == 200
        # Each sees and serves what the other made.
        for client in (before, after):
            for number in range(2):
                assert client.get(f"/api/v1/slots/e{number}").status_code == 200
                until(lambda client=client, number=number: is_paid(client, f"pay-{number}"))  # type: ignore[misc]
            assert client.get("/admin/dispatch/PAYMENT/stats").status_code == 200
            assert len(client.get("/admin/audit").json()) >= 2
        assert "Traceback" not in old.log + new.log
    # The earlier version's commands, too; and its `migrate` finds nothing to do and changes nothing.
    assert "nothing to do" in run(tmp_path, "migrate", "up", **old_shell).stdout
    assert "later version" in run(tmp_path, "migrate", "down", **old_shell).stderr
    shown = run(tmp_path, "payments", "show", "pay-1", "--json", **old_shell)
    assert json.loads(shown.stdout)["status"] == "PROCESSING"
    assert later_version.ADDED in run(tmp_path, "migrate", "status", **new_shell).stdout


def is_paid(client: Any, payment_id: str) -> bool:
    return bool(client.get(f"/api/v1/payments/{payment_id}").json()["status"] == "PROCESSING")


def module_of(variables: dict[str, str], folder: Path) -> str:
    """Where a program has paceline from that is started as the commands and services of these tests are."""
    program = "import paceline; print(paceline.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
