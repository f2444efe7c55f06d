"""With keys, no table has a name, an account or a remittance text that can be read: judged by the bytes of the
database, as somebody reads them who has its file or a dump, and no key."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest

from tests.acceptance.service import Service, run, until
from tests.faults.bank import Bank, Reply
from tests.unit.apps.payments.feeds.test_pain001 import PAIN

KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in range(3)]
HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt,remittanceText"
PAYER, PAYEE = "DE89370400440532013000", "FR1420041010050500013M02606"
NAMES = ("Ada Quillfeather", "Bertram Okonkwo", "Zwiebelbrot")
SAID = (*NAMES, PAYER, PAYEE, "Rent for the lighthouse", "FR14 2004 1010 0505 0001 3M02 606", "ADA QUILLFEATHER")


def line(name: str, amount: str = "10.00", *, at: datetime | None = None, payee: str = PAYEE) -> str:
    time = (at or datetime.now(UTC)).isoformat()
    return f"{name},{amount},EUR,{NAMES[0]},{PAYER},{NAMES[1]},{payee},{time},Rent for the lighthouse"


def send(client: httpx.Client, *lines: str) -> dict[str, Any]:
    body = "\n".join([HEADER, *lines, ""])
    answer = client.post("/api/v1/feeds", content=body.encode(), headers={"Content-Type": "text/csv"})
    assert answer.status_code == 202, answer.text
    feed: dict[str, Any] = until(lambda: ended(client, answer.json()["feedId"]))
    return feed


def ended(client: httpx.Client, feed_id: str) -> dict[str, Any] | None:
    shown: dict[str, Any] = client.get(f"/api/v1/feeds/{feed_id}").json()
    return shown if shown["state"] == "DONE" else None


def rejects_of(client: httpx.Client, feed: dict[str, Any]) -> list[dict[str, Any]]:
    text = client.get(f"/api/v1/feeds/{feed['feedId']}/rejects").text
    return [json.loads(line) for line in text.splitlines()]


def status(client: httpx.Client, payment_id: str) -> str:
    return str(client.get(f"/api/v1/payments/{payment_id}").json()["status"])


def stored(url: str) -> str:
    """Everything that is in the database's file, or in a dump of all its tables."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return "".join(file.read_bytes().decode("latin-1") for file in path.parent.glob(f"{path.name}*"))
    with psycopg.connect(url) as server:
        tables = [row[0] for row in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        return "\n".join(str(row[0]) for table in tables for row in server.execute(f"SELECT t::text FROM {table} AS t"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'paceline.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("keys", [None, KEYS[0]], ids=["plain", "encrypted"])
def test_nobody_reads_a_payment_in_the_database(url: str, keys: str | None, tmp_path: Path) -> None:
    echo = f"no: Ada Quillfeather, {PAYER} / ADA QUILLFEATHER to FR14 2004 1010 0505 0001 3M02 606, Rent for "
    echo += "the lighthouse"
    with Bank() as bank:
        bank.script["refused"] = [Reply(422, {"reason": echo})]
        bank.script["unsaid"] = [Reply(409, {"detail": echo})]
        variables = {"PACELINE_DATABASE_URL": url, "PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url}
        if keys is not None:
            variables["PACELINE_DISPATCH_ENCRYPTION_KEYS"] = keys
        (tmp_path / "rules.toml").write_text('configs = ["payer-{payerIban}", "{payeeCountry}-payee-{payeeIban}"]\n')
        variables["PACELINE_PAYMENTS_RULES"] = str(tmp_path / "rules.toml")
        for template in ("payer-*", "FR-payee-*", "GB-payee-*"):
            assert (
                run(tmp_path, "config", "set", template, "--max", "10", "--window", "PT1S", **variables).returncode == 0
            )
        with Service(tmp_path, **variables) as service, service.client() as client:
            later = datetime.now(UTC) + timedelta(days=2)
            feed = send(
                client,
                line("paid"),
                line("refused"),
                line("unsaid"),
                line("waits", at=later),
                line("wrong", payee=f"{PAYEE}7"),
                line("dear", "ten"),
            )
            assert feed["rejected"] == 2
            rejects = rejects_of(client, feed)
            assert NAMES[1] in rejects[0]["raw"]
            xml = PAIN.replace("Bob", NAMES[2]).replace("2027-03-01", datetime.now(UTC).date().isoformat())
            document = client.post("/api/v1/feeds", content=xml.encode(), headers={"Content-Type": "application/xml"})
            until(lambda: ended(client, document.json()["feedId"]))
            until(lambda: [status(client, name) for name in ("paid", "refused")] == ["PROCESSING", "FAILED"])
            shown = client.get("/api/v1/payments/paid").json()
            assert (shown["payer"]["name"], shown["payee"]["iban"]) == (NAMES[0], PAYEE)
            assert shown["instruction"]["RmtInf"] == {"Ustrd": ["Rent for the lighthouse"]}
            assert client.post("/api/v1/payments/refused/retry").status_code in (200, 202), "its item is read again"
            metrics = client.get("/metrics").text
        while_stopped = stored(url)
        sent = [call.body.decode() for call in bank.calls() if call.key == "paid"]
    assert NAMES[1] in sent[0]
    assert "Rent for the lighthouse" in sent[0]
    readable = [text for text in SAID if text in while_stopped]
    slot = json.loads(run(tmp_path, "slots", "show", "payment:waits", "--json", **variables).stdout)
    named = run(tmp_path, "payments", "configs", PAYER, "--json", **variables)
    [payer_config] = [each for each in json.loads(named.stdout)["names"] if each.startswith("payer-")]
    assert payer_config in [window["configName"] for window in slot["windows"]]
    if keys is None:
        assert set(NAMES[:2]) <= set(readable), "this test would find them"
        assert payer_config == f"payer-{PAYER}"
    else:
        assert readable == []
        assert [text for text in SAID if text in metrics] == []
        assert json.loads(named.stdout)["names"] == [payer_config, f"{{payeeCountry}}-payee-{payer_config[6:]}"]
    verified = run(tmp_path, "audit", "verify", **variables)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # Without keys, configs are named after accounts, and the log names a config that is made from its template.
    confidential = SAID if keys is not None else [text for text in SAID if text not in (PAYER, PAYEE)]
    assert [text for text in confidential if text in service.log] == []


def test_duplicates_and_daily_limits_hold_while_keys_are_rotated(url: str, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('duplicates = "reject"\n[daily_limits]\nEUR = "100"\n')
    variables = {"PACELINE_DATABASE_URL": url, "PACELINE_PAYMENTS_RULES": str(tmp_path / "rules.toml")}
    refused = {}
    at = datetime.now(UTC) + timedelta(days=3)
    rings = [None, KEYS[0], f"{KEYS[1]},{KEYS[0]}", f"{KEYS[2]},{KEYS[1]},{KEYS[0]}"]
    for number, ring in enumerate(rings):
        keys = {} if ring is None else {"PACELINE_DISPATCH_ENCRYPTION_KEYS": ring}
        with Service(tmp_path, **variables, **keys) as service, service.client() as client:
            feed = send(client, line(f"same-{number}", "10.00", at=at), line(f"more-{number}", f"2{number}.00", at=at))
            rejects = rejects_of(client, feed)
            refused[number] = {reject["paymentId"]: reject["reason"] for reject in rejects}
    assert refused[0] == {}
    # 10 + 20 + 21 + 22 of 100 euros, and then 23 more are 96; 10.00 to the same payee is a duplicate each time.
    for number in (1, 2, 3):
        assert "duplicates 'same-0'" in refused[number][f"same-{number}"]
        assert set(refused[number]) == {f"same-{number}"}
    keys = {"PACELINE_DISPATCH_ENCRYPTION_KEYS": str(rings[-1])}
    with Service(tmp_path, **variables, **keys) as service, service.client() as client:
        feed = send(client, line("too-much", "5.00", at=at))
        (reject,) = rejects_of(client, feed)
        assert "100" in reject["reason"]
        assert client.get("/api/v1/payments/same-0").json()["payee"]["name"] == NAMES[1]
        assert client.get("/api/v1/payments/more-1").json()["payee"]["name"] == NAMES[1]
    with Service(tmp_path, **variables) as service, service.client() as client:
        shown = client.get("/api/v1/payments/more-1").json()
        assert shown["payee"]["name"].startswith("encrypted with the key "), "without the keys, their id is shown"
        assert client.get("/api/v1/payments/same-0").json()["payee"]["name"] == NAMES[1], "from before there were keys"


def test_limits_per_payer_hold_while_keys_are_rotated(tmp_path: Path) -> None:
    """Two an hour for each payer: the third is booked an hour later, under whatever keys the first two were."""
    (tmp_path / "rules.toml").write_text('configs = ["payer-{payerIban}"]\n')
    variables = {
        "PACELINE_DATABASE_URL": f"sqlite:///{tmp_path / 'paceline.db'}",
        "PACELINE_PAYMENTS_RULES": str(tmp_path / "rules.toml"),
    }
    assert run(tmp_path, "config", "set", "payer-*", "--max", "2", "--window", "PT1H", **variables).returncode == 0
    at = datetime(2040, 3, 1, 9, tzinfo=UTC)
    hours = []
    for number, ring in enumerate([KEYS[0], f"{KEYS[0]},{KEYS[1]}", f"{KEYS[1]},{KEYS[0]}"]):
        with (
            Service(tmp_path, **variables, PACELINE_DISPATCH_ENCRYPTION_KEYS=ring) as service,
            service.client() as client,
        ):
            send(client, line(f"p{number}", at=at))
            hours.append(client.get(f"/api/v1/payments/p{number}").json()["scheduledTime"][11:13])
    assert hours == ["09", "09", "10"]


def test_rules_that_need_too_many_configs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('configs = ["a-{payerIban}", "b-{payerIban}", "c-{payeeIban}"]\n')
    variables = {"PACELINE_PAYMENTS_RULES": str(tmp_path / "rules.toml")}
    ended = run(tmp_path, "serve", "--port", "0", PACELINE_DISPATCH_ENCRYPTION_KEYS=",".join(KEYS), **variables)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "PACELINE_PAYMENTS_RULES: configs: a payment has 10 with 3 encryption keys" in ended.stderr
