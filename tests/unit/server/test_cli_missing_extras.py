"""A command whose extra is not installed reports that, and leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.extras import MODULES
from paceline.slots import calendars
from tests.unit.server.cli.command import Paceline, paceline

__all__ = ["paceline"]

HOLIDAYS = '{"zone": "Europe/Berlin", "holidays": "DE"}'


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("kafka", "sms send 1 hello"),
        ("kafka", "sms dead-letters redrive --all"),
        ("sms", "sms send 1 hello --to +4915112345678"),
        ("sms", "sms quota 1 --limit 3 --minutes 1 --phone +4915112345678"),
        ("sms", "sms optout +4915112345678"),
        ("payments", "payments cancel pay-1"),
        ("payments", "payments retry pay-1"),
        ("calendars", "config set bulk --max 5 --window PT4S --calendar calendar.json"),
    ],
)
def test_nothing_is_created(
    extra: str, words: str, paceline: Paceline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("PACELINE_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    for module in MODULES[extra]:
        monkeypatch.setitem(sys.modules, module, None)
    calendars._holidays_of.cache_clear()  # another test may have asked for the same
    Path("calendar.json").write_text(HOLIDAYS)
    assert paceline(*words.split(), status=2) == f"paceline {words.split()[0]} needs: pip install 'paceline[{extra}]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["calendar.json"]


def test_a_demo_that_is_to_be_drawn_does_not_run_without_what_draws_it(
    paceline: Paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_payments.service.demo._run", None)
    assert paceline("demo", "--plot", "no/demo.png", status=2) == (
        "paceline: --plot: no/demo.png can't be written: there is no folder no\n"
    )
    for module in (*MODULES["plot"], *MODULES["payments"]):
        monkeypatch.setitem(sys.modules, module, None)
    needs = "paceline demo needs: pip install 'paceline[payments,plot]'\n"
    assert paceline("demo", "--plot", "demo.png", status=2) == needs


def test_pruning_needs_no_broker(paceline: Paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr("paceline.kafka.log.KafkaLog", None)
    paceline("prune", "--before", "P30D")


def test_a_schedule_names_all_that_it_needs(paceline: Paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (*MODULES["periodic"], *MODULES["calendars"]):
        monkeypatch.setitem(sys.modules, module, None)
    calendars._holidays_of.cache_clear()
    Path("calendar.json").write_text(HOLIDAYS)
    words = ["periodic", "set", "report", "--type", "REPORT", "--calendar", "calendar.json", "--cron"]
    needs = "paceline periodic needs: pip install 'paceline[periodic,calendars]'\n"
    assert paceline(*words, "0 16 * * MON-FRI", status=2) == needs


KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
CONFIGURED = {
    "PACELINE_DISPATCH_ENCRYPTION_KEYS": KEY,
    "PACELINE_LOG_FORMAT": "json",
    "PACELINE_GRPC_PORT": "0",
    "PACELINE_OIDC_ISSUER": "http://127.0.0.1:1",
    "PACELINE_OIDC_CLIENT_ID": "paceline",
    "PACELINE_OIDC_SCOPES": '{"ops": "admin"}',
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation with `queue` alone, under settings that need more."""
    for name, value in CONFIGURED.items():
        monkeypatch.setenv(name, value)
    for extra, modules in MODULES.items():
        for module in modules if extra != "queue" else ():
            monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("bare")
def test_a_process_names_all_that_it_needs_and_no_more(paceline: Paceline) -> None:
    needs = "needs: pip install 'paceline"
    assert paceline("serve", status=2) == f"paceline serve {needs}[server,encryption,grpc,oidc]'\n"
    assert paceline("worker", status=2) == f"paceline worker {needs}[encryption,server]'\n"
