"""Every guarantee of payments at once, on every kind of installation, by the record of an independent bank.

While every answer of the table comes, a process is frozen, another is killed, the store of the permits loses its data,
and the kill switch is thrown and released.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer
from tests.effort import is_thorough
from tests.faults.bank import Bank, Reply, doubled
from tests.faults.bank_stack import Installation, frozen, installation

TPS = 15 if is_thorough() else 5
QUICK = {"PAYMENTS_DOWNSTREAM_TIMEOUT": "1", "PAYMENTS_DOWNSTREAM_ATTEMPTS": "3", "PAYMENTS_BREAKER": "off"}
"""Without the breaker, which would delay all payments: `test_payments_answers` has it."""
SITES = [
    "one embedded",
    "two embedded",
    "postgresql",
    "postgresql that restarts",
    "redis",
    "redis with persistence",
    "temporal",
]

ALWAYS = 50
"""Also when an answer is lost with its process."""
LOST = Reply(executes=True, silent=True)
NO = {"reason": "account closed"}
ANSWERS: dict[str, list[Reply]] = {
    # All attempts fail; the inquiry returns the outcome, or it stays unknown. Those that take longest come first.
    "unknown": [Reply(500)] * ALWAYS,
    "inquiry-rejected": [Reply(500)] * ALWAYS,
    "inquiry-executed": [LOST, Reply(500), Reply(500)],
    "lost-in-progress": [LOST, Reply(409, {"reason": "same key in progress"})],
    "slow": [Reply(201, delay=1.5)],
    "cut": [Reply(silent=True)],
    **{f"again-{status}": [Reply(status)] for status in (408, 409, 425, 500, 502, 503, 504)},
    "again-429": [Reply(429, headers=(("Retry-After", "1"),))],
    **{f"connection-{status}": [Reply(status)] for status in (302, 401, 403, 404, 405)},
    **{f"verdict-{status}": [Reply(status, NO)] * ALWAYS for status in (400, 402, 403, 422)},
}
PLAIN = [f"p{number:03d}" for number in range((5 if is_thorough() else 6) * TPS)]


@pytest.mark.parametrize("site", SITES)
def test_all_promises_hold_whatever_happens(site: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    settings, forget, answers = dict(QUICK), None, answers_of(site)
    with ExitStack() as stack:
        database = "embedded"
        if "that restarts" in site:
            own = request.getfixturevalue("own_postgres")
            database, forget = own.url, lambda: _restart(own)
        elif "embedded" not in site:
            database = str(request.getfixturevalue("postgres_url"))
        if "redis" in site:
            server = stack.enter_context(RedisServer(durable=site == "redis with persistence"))
            settings["REDIS_URL"], forget = server.url, lambda: _restart(server)
        if site == "temporal":
            settings["TEMPORAL_ADDRESS"], settings["TEMPORAL_NAMESPACE"] = request.getfixturevalue("temporal_namespace")
        bank = stack.enter_context(Bank(latency=0.02, script={key: list(replies) for key, replies in answers.items()}))
        bank.inquiries = {
            "inquiry-rejected": Reply(200, {"status": "REJECTED", "reason": "limit"}),
            "unknown": Reply(503),
        }
        installed = stack.enter_context(installation(tmp_path, bank, database, TPS, **settings))
        _run(installed, site, answers, forget)


def answers_of(site: str) -> dict[str, list[Reply]]:
    """The answers of the bank in this kind of installation. Of the statuses that mean the same, the quick profile has a
    third for each, so that every one comes in two."""
    return {
        key: replies
        for number, (key, replies) in enumerate(ANSWERS.items())
        if is_thorough() or not key[-3:].isdigit() or key == "again-429" or number % 3 == SITES.index(site) % 3
    }


def _run(
    installed: Installation, site: str, answers: Mapping[str, list[Reply]], forget: Callable[[], None] | None
) -> None:
    bank = installed.bank
    failed = {key for key in answers if key.startswith("verdict-")} | {"inquiry-rejected"}
    # Answers of every kind come from the beginning on, between good ones.
    ids = [key for pair in zip(answers, PLAIN, strict=False) for key in pair] + PLAIN[len(answers) :]
    executed = set(ids) - failed - {"unknown"}
    role = "all" if site == "temporal" else "dispatch"

    def first() -> subprocess.Popen[str]:
        if "embedded" in site:
            return installed.start("serve", "paceline", "serve", "--port", "0")
        return installed.worker(role)

    processes = [first()] if site == "one embedded" else [first(), installed.worker(role)]
    installed.configure(
        stale_claim_threshold_mins=0.1,
        retry_backoff_secs=0.2,
        max_dispatch_retries=1 if site == "temporal" else 2,  # there, each takes ten seconds of what has no answer
        pre_start_buffer_mins=0,
    )
    due = installed.submit(ids, after=1.0)
    installed.until_executed(TPS)
    with frozen(processes[-1]):
        time.sleep(1.5)  # longer than a call may take: the process wakes up with answers that are lost
    processes[0].kill()
    processes[0] = first()
    if forget is not None:
        forget()
        installed.reconnect()
    installed.until_executed(3 * TPS)
    _pause_and_resume(installed, len(executed))
    expected = {"PROCESSING": len(executed), "FAILED": len(failed), "UNKNOWN": 1}

    def is_over() -> bool:
        installed.make_due()  # what went back because of the connection rests for half a minute
        return installed.statuses() == expected

    installed.until(is_over, within=180)
    assert set(bank.executed) == executed, "none is lost, and none is made that the bank refused"
    rows = installed.rows("SELECT payment_id, status FROM paceline_payment WHERE status <> 'PROCESSING'")
    assert dict(rows) == dict.fromkeys(failed, "FAILED") | {"unknown": "UNKNOWN"}, "none is final without its word"
    assert doubled(bank) == []
    assert min(bank.executed.values()) >= due.timestamp(), "none is early"
    assert bank.peak() <= TPS, f"{bank.peak()} calls in one second of {TPS}"


def _pause_and_resume(installed: Installation, executed: int) -> None:
    installed.paceline("queue", "pause", "PAYMENT")
    acknowledged = time.monotonic()
    installed.until_nothing_is_in_flight()
    time.sleep(max(0.0, acknowledged + 2.0 - time.monotonic()))  # that nothing arrives can only be seen by waiting
    late = [arrival.key for arrival in installed.bank.calls() if arrival.at > acknowledged + 1.0]
    assert late == [], "none leaves after a pause"
    assert len(installed.bank.executed) < executed, "it was thrown in time to stop some"
    installed.paceline("queue", "resume", "PAYMENT")


def _restart(server: RedisServer | PostgresServer) -> None:
    server.kill()
    server.start()
