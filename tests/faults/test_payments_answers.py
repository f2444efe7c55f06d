"""Every answer of the table, from an independent bank: no payment is final without the bank's confirmation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from paceline.circuit_breaker import BreakerPolicy
from tests.faults.bank import Bank, Reply
from tests.faults.bank_stack import Installation, installation

TPS = 40
LOST = Reply(executes=True, silent=True)
QUICK = {"PAYMENTS_DOWNSTREAM_TIMEOUT": "1", "PAYMENTS_DOWNSTREAM_ATTEMPTS": "3"}


def payment(installed: Installation, key: str) -> tuple[str, str | None]:
    return tuple(installed.rows(f"SELECT status, reason FROM paceline_payment WHERE payment_id = '{key}'")[0])


def item(installed: Installation, key: str) -> tuple[str, int]:
    return tuple(
        installed.rows(f"SELECT queue_status, retry_count FROM paceline_dispatch_queue WHERE item_id = '{key}'")[0]
    )


def test_every_answer_means_what_the_table_says(tmp_path: Path) -> None:
    no = {"reason": "account closed"}
    script: dict[str, list[Reply]] = {
        "good": [],
        "lost-then-in-progress": [LOST, Reply(409, {"reason": "same key in progress"})],
        "slow-then-good": [Reply(201, delay=1.5)],
        "cut": [Reply(silent=True)],
        "busy": [Reply(429, headers=(("Retry-After", "1"),))],
        "early": [Reply(425)],
        "timed-out": [Reply(408)],
        "broken": [Reply(500), Reply(503)],
        "wrong-400": [Reply(400, no)],
        "wrong-402": [Reply(402, no)],
        "wrong-403": [Reply(403, no)],
        "wrong-422": [Reply(422, no)],
        # All attempts fail; the inquiry returns the outcome.
        "found-executed": [LOST, Reply(500), Reply(500)],
        "found-rejected": [Reply(500), Reply(500), Reply(500)],
    }
    refused = {key for key in script if key.startswith("wrong-")} | {"found-rejected"}
    # Without the breaker: one bad run would delay all payments.
    with (
        Bank(script=script) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK, PAYMENTS_BREAKER="off") as installed,
    ):
        bank.inquiries["found-rejected"] = Reply(200, {"status": "REJECTED", "reason": "limit"})
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.submit(list(script))
        installed.until_statuses(PROCESSING=len(script) - len(refused), FAILED=len(refused))
        for key in script:
            if key in refused:
                status, reason = payment(installed, key)
                assert (status, item(installed, key)[0]) == ("FAILED", "DEAD_LETTER"), key
                assert reason is not None
                assert ("limit" if key == "found-rejected" else "account closed") in reason
            else:
                # The item is settled right after its payment.
                installed.until(lambda key=key: item(installed, key) == ("COMPLETED", 0))
        assert sorted(bank.executed) == sorted(set(script) - refused)
        times = [arrival.at for arrival in bank.calls() if arrival.key == "busy"]
        assert times[1] - times[0] >= 1.0, "Retry-After is honoured"


def test_an_outcome_that_nobody_knows_is_unknown_until_the_bank_says(tmp_path: Path) -> None:
    keys = ["executed", "rejected", "never-seen", "pending"]
    with (
        Bank(default=lambda key: Reply(500)) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK, PAYMENTS_BREAKER="off") as installed,
    ):
        bank.inquiries = {key: Reply(503) for key in keys}
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.configure(max_dispatch_retries=2, retry_backoff_secs=0.1)
        installed.submit(keys)
        installed.until_statuses(UNKNOWN=len(keys))
        assert {item(installed, key)[0] for key in keys} == {"DEAD_LETTER"}
        _, reason = payment(installed, "executed")
        assert reason is not None
        assert "500" in reason
        bank.inquiries = {
            "executed": Reply(200, {"status": "EXECUTED", "reference": "R-1"}),
            "rejected": Reply(200, {"status": "REJECTED", "reason": "closed"}),
            "never-seen": Reply(404),
            "pending": Reply(200, {"status": "PENDING"}),
        }
        bank.default = lambda key: Reply(201)
        before = len(bank.calls())
        for key in keys:
            installed.try_paceline("payments", "retry", key)
        installed.until_statuses(PROCESSING=2, FAILED=1, UNKNOWN=1)
        assert payment(installed, "pending")[0] == "UNKNOWN"
        assert payment(installed, "rejected")[0] == "FAILED"
        assert [arrival.key for arrival in bank.calls()[before:]] == ["never-seen"], (
            "what was executed is not sent again"
        )


def test_a_wrong_connection_harms_no_payment_and_opens_the_breaker(tmp_path: Path) -> None:
    keys = [f"p{number}" for number in range(12)]
    with (
        Bank(default=lambda key: Reply(401)) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK) as installed,
    ):
        serving = installed.serve()
        installed.submit(keys)
        installed.until(lambda: len(bank.arrivals) >= 2)
        assert installed.statuses() == {"SCHEDULED": len(keys)}
        installed.until(lambda: serving.get("/health/ready").json()["status"] == "DEGRADED")
        ready: Any = serving.get("/health/ready").json()
        assert {"name": "downstream", "status": "DOWN", "data": {"reason": "BreakerOpen"}} in ready["checks"]
        assert ready["status"] == "DEGRADED"
        # Others may have left before it opened, and arrive late on a busy machine. Then only probes leave, with pauses.
        installed.until(lambda: bank.arrivals[-1].at - bank.arrivals[-2].at >= BreakerPolicy().first_pause)
        bank.default = lambda key: Reply(201)
        installed.make_due()
        installed.until_statuses(PROCESSING=len(keys))
        assert installed.rows("SELECT max(retry_count) FROM paceline_dispatch_queue") == [(0,)]
        assert '"breaker": null' in installed.rows("SELECT state FROM paceline_downstream")[0][0]


def test_the_breaker_may_throw_the_kill_switch(tmp_path: Path) -> None:
    keys = [f"p{number:02d}" for number in range(30)]
    with (
        Bank(default=lambda key: Reply(503)) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK, PAYMENTS_BREAKER="pause") as installed,
    ):
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.submit(keys)
        installed.until(lambda: installed.rows("SELECT enabled FROM paceline_dispatch_config")[0][0] in (0, False))
        installed.until_nothing_is_in_flight()
        thrown, calls = time.monotonic(), len(bank.arrivals)
        assert installed.statuses() == {"SCHEDULED": len(keys)}
        bank.default = lambda key: Reply(201)
        installed.paceline("queue", "resume", "PAYMENT")
        installed.until_statuses(PROCESSING=len(keys))
        resumed = [arrival.at for arrival in bank.arrivals[calls:]]
        assert min(resumed) > thrown
