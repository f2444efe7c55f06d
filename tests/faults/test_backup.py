"""A backup that is taken under load and restored after a disaster: no payment is lost, and none is made twice."""

from __future__ import annotations

import signal
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

import httpx2 as httpx

from paceline.durations import format_instant
from paceline.testing import PostgresServer
from paceline.testing.servers.postgres import packaged_installation
from tests.acceptance.service import Service, run, until
from tests.faults.bank import Bank, doubled

PAYMENTS = 60
COMMON = {
    "amount": "12.34",
    "currency": "EUR",
    "payer": {"name": "Anna", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bert", "iban": "FR1420041010050500013M02606"},
}


def test_a_backup_under_load_is_restored_without_losing_or_doubling_a_payment(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    databases = own_postgres.databases
    before, after = databases.create("before"), ""
    acknowledged: list[str] = []
    at = format_instant(datetime.now(UTC))

    def submit(client: httpx.Client, payment_id: str) -> bool:
        body = COMMON | {"paymentId": payment_id, "executeAt": at}
        try:
            return client.post("/api/v1/payments", json=body).status_code == 202
        except httpx.TransportError:
            return False

    with Bank(latency=0.01) as bank:
        variables = {"PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url, "PACELINE_LOG_LEVEL": "warning"}
        # A restored database grants no call until the longest possible one of before has ended.
        variables["PACELINE_PAYMENTS_DOWNSTREAM_TIMEOUT"] = "2"
        service = Service(tmp_path, PACELINE_DATABASE_URL=before, **variables).start()
        with service.client() as client:
            # What was in flight in the backup is taken up again after so long.
            soon = {"staleClaimThresholdMins": 0.05, "dispatchIntervalSecs": 0.2}
            assert client.patch("/admin/dispatch/PAYMENT", json=soon).status_code == 200

            def feed() -> None:
                for number in range(PAYMENTS):
                    if submit(client, f"pay-{number}"):
                        acknowledged.append(f"pay-{number}")

            feeding = threading.Thread(target=feed)
            feeding.start()
            until(lambda: len(acknowledged) > PAYMENTS // 4)
            pg("pg_dump", "--format=custom", f"--file={tmp_path / 'paceline.dump'}", before)
            in_the_dump = len(bank.executed)
            until(lambda: len(bank.executed) > in_the_dump, within=120)
            feeding.join(120)
        service.signal(signal.SIGKILL)
        service.wait()
        databases.drop("before")

        after = databases.create("after")
        pg("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={after}", str(tmp_path / "paceline.dump"))
        restored = {"PACELINE_DATABASE_URL": after} | variables
        assert run(tmp_path, "migrate", "status", **restored).returncode == 0
        with Service(tmp_path, **restored) as again, again.client() as client:
            # Callers whose payment was accepted after the backup send it again.
            assert len(acknowledged) == PAYMENTS
            assert all(submit(client, payment_id) for payment_id in acknowledged)

            def paid() -> bool:
                page = client.get("/api/v1/payments", params={"status": "PROCESSING", "limit": 1000}).json()
                return len(page["payments"]) == PAYMENTS

            until(paid, within=200)
        assert doubled(bank) == []
        assert set(bank.executed) == set(acknowledged)
        lines = [
            f"{payment_id},12.34,EUR,EXECUTED,,{format_instant(datetime.now(UTC))}" for payment_id in bank.executed
        ]
        statement = tmp_path / "statement.csv"
        statement.write_text("\n".join(["paymentId,amount,currency,status,reference,executedAt", *lines]) + "\n")
        reconciled = run(tmp_path, "payments", "reconcile", str(statement), **restored)
        assert reconciled.returncode == 0, reconciled.stdout + reconciled.stderr


def pg(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [str(packaged_installation() / "bin" / program), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
