"""What a bank says in the body of its answers, and what nobody knows, from an independent bank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.bank import Bank, Reply
from tests.faults.bank_stack import installation
from tests.faults.test_payments_answers import LOST, QUICK, TPS, payment

LOGIN = "<html>Please log in</html>"


def test_a_payment_is_what_the_body_says(tmp_path: Path) -> None:
    script = {
        "rejected": [Reply(200, {"status": "REJECTED", "reason": "account closed"})],
        "rejected-500": [Reply(500, {"status": "REJECTED", "reason": "limit"})],
        "pending": [Reply(202, {"status": "PENDING"})],
        "duplicate": [LOST, Reply(422, {"status": "REJECTED", "reason": "duplicate"})],
        "login": [Reply(200, LOGIN)] * 50,
        "page": [Reply(400, LOGIN)] * 2,
    }
    with (
        Bank(script=script) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK, PAYMENTS_BREAKER="off") as installed,
    ):
        bank.inquiries["pending"] = Reply(200, {"status": "PENDING"})
        bank.inquiries["login"] = Reply(503)
        bank.inquiries["page"] = Reply(404)
        bank.inquiries["duplicate"] = Reply(503)
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.configure(max_dispatch_retries=2, retry_backoff_secs=0.1)
        installed.submit(list(script))
        installed.until_statuses(FAILED=3, PENDING=1, UNKNOWN=2)
        assert {key: payment(installed, key)[0] for key in script} == {
            "rejected": "FAILED",
            "rejected-500": "FAILED",
            "pending": "PENDING",
            "duplicate": "UNKNOWN",
            "login": "UNKNOWN",
            "page": "FAILED",
        }
        assert "400" in str(payment(installed, "page")[1])
        sent = len(bank.calls())
        bank.inquiries["pending"] = Reply(200, {"status": "EXECUTED", "reference": "R-7"})
        bank.inquiries["duplicate"] = Reply(200, {"status": "EXECUTED", "reference": "R-8"})
        assert installed.try_paceline("payments", "retry", "duplicate") == 0
        installed.until_statuses(FAILED=3, PROCESSING=2, UNKNOWN=1)
        assert len(bank.calls()) == sent, "nothing that the bank executed is sent again"


def test_an_operators_retry_of_anything_that_left_inquires_first(tmp_path: Path) -> None:
    with (
        Bank(default=lambda key: Reply(422, {"status": "REJECTED", "reason": "no cover"})) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK, PAYMENTS_BREAKER="off") as installed,
    ):
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.submit(["executed", "never-seen"])
        installed.until_statuses(FAILED=2)
        sent = len(bank.calls())
        bank.inquiries["executed"] = Reply(200, {"status": "EXECUTED", "reference": "R-1"})
        bank.default = lambda key: Reply(201)
        assert installed.try_paceline("payments", "retry", "executed") == 0
        installed.paceline("queue", "requeue", "PAYMENT", "never-seen")
        installed.until_statuses(PROCESSING=2)
        assert [call.key for call in bank.calls()[sent:]] == ["never-seen"]
        assert {call.key for call in bank.calls("GET")} == {"executed", "never-seen"}


def test_a_page_for_three_payments_in_a_row_is_charged_to_none(tmp_path: Path) -> None:
    with (
        Bank(default=lambda key: Reply(422, LOGIN)) as bank,
        installation(tmp_path, bank, "embedded", TPS, **QUICK) as installed,
    ):
        serving = installed.serve()
        keys = [f"p{number}" for number in range(6)]
        installed.submit(keys)
        installed.until(lambda: serving.get("/health/ready").json()["status"] == "DEGRADED")
        assert installed.statuses() == {"SCHEDULED": len(keys)}
        bank.default = lambda key: Reply(201)
        installed.make_due()
        installed.until_statuses(PROCESSING=len(keys))


def test_a_bank_whose_status_alone_means_executed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**QUICK, "PAYMENTS_DOWNSTREAM_VERDICT": "status"}
    with (
        Bank(default=lambda key: Reply(201, "thanks")) as bank,
        installation(tmp_path, bank, "embedded", TPS, **settings, PAYMENTS_BREAKER="off") as installed,
    ):
        bank.script["no-keys"] = [LOST, Reply(409)]
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.submit(["good", "no-keys"])
        installed.until_statuses(PROCESSING=2)
