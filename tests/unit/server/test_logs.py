"""The log's two forms: what belongs to a line, and that nothing can begin one."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from paceline import tracing
from paceline.server import logs
from paceline.server.settings import Settings

FORGED = "2030-01-01T00:00:00Z error   forged"
ORDERS = ["\x1b[2J", "\x1b]0;pwned\x07", "\x9b2J", "\x85", "\u2028", "\x7f", "\u202e", "\r", "\x08"]
BREAKS = ["\n", "\r\n", "\x85", "\u2028", "\x0b", "\x1b[2J\n"]


class Stderr(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@contextmanager
def written(log_format: str, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> Iterator[io.StringIO]:
    out = Stderr(terminal)
    monkeypatch.setattr(sys, "stderr", out)
    root = logging.getLogger()
    own = logging.getLogger("paceline")
    before, level, own_level = root.handlers[:], root.level, own.level
    logs.configure(Settings.load(log_format=log_format))
    try:
        yield out
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        own.setLevel(own_level)
        structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("separator", BREAKS)
def test_nothing_can_begin_a_line(log_format: str, separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = f"x{separator}{FORGED}"
    with written(log_format, monkeypatch) as out:
        log = logging.getLogger("paceline.test")
        log.warning("about %s", evil, extra={"event_id": evil})
        structlog.get_logger().warning(evil, path=evil)
        try:
            raise ValueError(evil)
        except ValueError:
            log.exception("failed")
    lines = out.getvalue().splitlines()
    assert not [line for line in lines if line.startswith("2030")]
    if log_format == "json":
        assert [json.loads(line)["level"] for line in lines] == ["warning", "warning", "error"]
        assert json.loads(lines[0])["event_id"] == evil, "a reader of JSON gets the value as it was"
    else:
        assert len([line for line in lines if not line.startswith("    ")]) == 3
        assert "event_id=" in lines[0]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_says_what_it_belongs_to(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = tracing.begin("caller", parent=f"00-{'4b' * 16}-{'0f' * 8}-01")
    with written(log_format, monkeypatch) as out, tracing.inside(caller):
        token = logs.REQUEST_ID.set("call-1")
        logging.getLogger("paceline.test").warning("told", extra={"item_id": "pay-1", "unknown": "secret"})
        structlog.get_logger().info("request", request_id="its own")
        logs.REQUEST_ID.reset(token)
    first, second = out.getvalue().splitlines()
    if log_format == "json":
        entry = json.loads(first)
        assert (entry["request_id"], entry["trace_id"], entry["item_id"]) == ("call-1", "4b" * 16, "pay-1")
        assert json.loads(second)["request_id"] == "its own"
    else:
        assert first.endswith(f" warning told request_id=call-1 trace_id={'4b' * 16} item_id=pay-1")
        assert "request_id='its own'" in second
    assert "secret" not in first, "only what is known to be harmless is written"


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "order", ["\x1b[2J", "\x1b]0;pwned\x07", "\x9b2J", "\x85", "\u2028", "\x7f", "\u202e", "\r", "\x08"]
)
def test_a_terminal_is_given_no_orders(
    log_format: str, terminal: bool, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(log_format, monkeypatch, terminal=terminal) as out:
        log = logging.getLogger("paceline.test")
        log.warning("about %s", f"a{order}b", extra={"event_id": f"a{order}b"})
        structlog.get_logger().info(f"a{order}b", path=f"a{order}b", values=[f"a{order}b"])
        try:
            raise ValueError(f"a{order}b")
        except ValueError:
            log.exception("failed")
    # What colours the lines of a terminal is our own.
    shown = re.sub(r"\x1b\[\d+m", "", out.getvalue())
    assert order not in shown
    assert all(character.isprintable() for character in shown.replace("\n", "")), shown
    assert "ValueError: a" in shown


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_libraries_are_quoted_without_passwords(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", "postgresql://u:S3 cret1@h/x")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h/S3cret2?k=v")
    with written(log_format, monkeypatch) as out:
        log = logging.getLogger("opentelemetry.exporter")
        log.warning("Max retries exceeded with url: %s (refused)", "/%53%33cret2/v1/traces?k=v")
        try:
            raise ValueError("can't connect with S3 cret1")
        except ValueError:
            log.exception("calling http://h/S3cret2 failed")
    assert not re.search("S3|cret\\d", out.getvalue())
    assert "with url: *** (refused)" in out.getvalue()
    assert "can't connect with ***" in out.getvalue()


def test_half_a_surrogate_pair_does_not_silence_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with written("json", monkeypatch) as out:
        logging.getLogger("paceline.test").warning("half \ud800 of a pair")
    assert json.loads(out.getvalue())["event"] == "half \ud800 of a pair"


def test_a_worker_without_structlog_writes_plain_lines_and_says_what_json_needs() -> None:
    program = """
import logging, sys
sys.modules["structlog"] = None
from paceline.server import logs
from paceline.errors import ConfigurationError
from paceline.server.settings import Settings
try:
    logs.configure(Settings.load(log_format="json"))
except ConfigurationError as error:
    print(error)
logs.configure(Settings.load())
try:
    raise ValueError("x\\n2030 forged")
except ValueError:
    logging.getLogger("paceline.test").exception("about\\n2030 forged")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'paceline[server]'" in done.stdout
    lines = done.stderr.splitlines()
    assert "ERROR paceline.test: about\\n2030 forged" in lines[0]
    assert len(lines) > 2
    assert all(line.startswith("    ") for line in lines[1:])
