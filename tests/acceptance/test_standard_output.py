"""Standard output that is full, closed, or no longer read: one line on standard error at most, and status 1."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.acceptance.envoy_proxy import free_port
from tests.acceptance.service import command, environment, run, until

FULL, CLOSED = ">/dev/full", ">&-"
BUFFERED, UNBUFFERED = "", "1"
IN_MEMORY = {"PACELINE_DATABASE_URL": "memory://"}


def redirected(
    directory: Path, redirection: str, *arguments: str, unbuffered: str = BUFFERED, **variables: str
) -> tuple[int, str]:
    """The exit status, and what the command wrote to standard error."""
    shell = ["bash", "-c", f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}', "bash", *command(*arguments)]
    ended = subprocess.run(
        shell,
        check=False,
        cwd=directory,
        env=environment(PYTHONUNBUFFERED=unbuffered, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "redirection", "unbuffered", "problem"),
    [
        ("payments list", FULL, BUFFERED, "No space left on device"),
        ("payments list", CLOSED, BUFFERED, "it is closed"),
        ("plans list --json", FULL, UNBUFFERED, "No space left on device"),
        ("plans list --json", CLOSED, BUFFERED, "it is closed"),
    ],
)
def test_a_result_that_can_t_be_written_is_a_failure_in_one_line(
    tmp_path: Path, arguments: str, redirection: str, unbuffered: str, problem: str
) -> None:
    ended = redirected(tmp_path, redirection, *arguments.split(), unbuffered=unbuffered, **IN_MEMORY)
    said = f"standard output can't be written: {problem}"
    line = json.dumps({"error": said}) if "--json" in arguments else f"paceline: {said}"
    assert ended == (1, f"{line}\n")


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [(FULL, "No space left on device"), (CLOSED, "standard output can't be written: it is closed")],
)
def test_so_is_the_help(tmp_path: Path, redirection: str, problem: str) -> None:
    assert redirected(tmp_path, redirection, "--help") == (1, f"paceline: {problem}\n")


def test_a_reader_that_has_enough_is_no_error_to_report(tmp_path: Path) -> None:
    assert redirected(tmp_path, "| true", "plans", "list", "--json", **IN_MEMORY) == (0, "")


def test_work_whose_progress_nobody_reads_is_done(tmp_path: Path) -> None:
    header = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt"
    rest = "12.34,EUR,Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z"
    (tmp_path / "feed.csv").write_text(f"{header}\np1,{rest}\n")
    assert redirected(tmp_path, "2>&-", "payments", "submit", "feed.csv") == (0, "")
    assert "SCHEDULED" in run(tmp_path, "payments", "show", "p1").stdout


def test_a_service_whose_address_can_t_be_printed_serves(tmp_path: Path) -> None:
    port = free_port()
    shell = ["bash", "-c", f'exec "$@" {FULL}', "bash", *command("serve", "--port", str(port))]
    with subprocess.Popen(shell, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL) as service:
        try:
            until(lambda: service.poll() is not None or is_live(port))
            assert service.poll() is None, "it ended instead"
        finally:
            service.terminate()
    assert service.returncode == 0


def is_live(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
    except httpx.HTTPError:
        return False
