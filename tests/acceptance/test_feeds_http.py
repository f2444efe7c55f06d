"""Feeds, lists, cancellations and retries over HTTP, as a caller meets them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx2 as httpx
import pytest

from tests.acceptance.service import Service, command, environment, run, until

HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt"
ALICE, BOB = "DE89370400440532013000", "GB29NWBK60161331926819"
CSV = {"Content-Type": "text/csv"}


@pytest.fixture(scope="module", params=["queue", "direct"])
def paying(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("feeds")
    with Service(directory, PACELINE_PAYMENTS_MODE=request.param) as service, service.client() as client:
        yield client


def feed_of(*names: str, amount: str = "12.34", at: str = "2030-03-01T16:00:00Z") -> str:
    return "\n".join([HEADER, *(f"{name},{amount},EUR,Alice,{ALICE},Bob,{BOB},{at}" for name in names)])


def done(paying: httpx.Client, feed_id: str) -> dict[str, Any]:
    until(lambda: paying.get(f"/api/v1/feeds/{feed_id}").json()["state"] == "DONE")
    shown: dict[str, Any] = paying.get(f"/api/v1/feeds/{feed_id}").json()
    return shown


def test_a_feed_is_an_object(paying: httpx.Client) -> None:
    body = feed_of("o1", "o2", "o1") + "\nbroken"
    answer = paying.post("/api/v1/feeds", params={"count": "4", "controlSum": "37.02"}, content=body, headers=CSV)
    assert answer.status_code == 202
    feed = done(paying, answer.json()["feedId"])
    assert (feed["records"], feed["accepted"], feed["duplicates"], feed["rejected"]) == (4, 2, 1, 1)
    assert (feed["totals"], feed["progress"]) == ({"EUR": "24.68"}, 1.0)
    listed = paying.get("/api/v1/payments", params={"feed": feed["feedId"], "limit": 1}).json()
    assert ([payment["paymentId"] for payment in listed["payments"]], listed["next"]) == (["o1"], "o1")
    rest = paying.get("/api/v1/payments", params={"feed": feed["feedId"], "cursor": listed["next"]}).json()
    assert ([payment["paymentId"] for payment in rest["payments"]], rest["next"]) == (["o2"], None)
    rejects = paying.get(f"/api/v1/feeds/{feed['feedId']}/rejects")
    (reject,) = [json.loads(line) for line in rejects.text.splitlines()]
    assert (reject["line"], reject["raw"]) == (5, "broken")
    file = paying.get(f"/api/v1/feeds/{feed['feedId']}/rejects", params={"format": "feed"})
    assert file.text == f"{HEADER}\nbroken\n"
    assert feed["feedId"] in [entry["feedId"] for entry in paying.get("/api/v1/feeds").json()["feeds"]]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({"count": "3"}, "count"), ({"controlSum": "24.67"}, "controlSum"), ({"count": "x"}, "count")],
)
def test_a_feed_whose_figures_are_wrong_leaves_nothing(
    paying: httpx.Client, parameters: dict[str, str], field: str
) -> None:
    answer = paying.post("/api/v1/feeds", params=parameters, content=feed_of("w1", "w2"), headers=CSV)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert paying.get("/api/v1/payments/w1").status_code == 404


def test_the_same_feed_twice_is_one_feed_and_can_be_cancelled(paying: httpx.Client) -> None:
    first = paying.post("/api/v1/feeds", content=feed_of("t1", "t2"), headers=CSV).json()
    second = paying.post("/api/v1/feeds", content=feed_of("t1", "t2"), headers=CSV).json()
    assert first["feedId"] == second["feedId"]
    done(paying, first["feedId"])
    cancelled = paying.delete(f"/api/v1/feeds/{first['feedId']}").json()
    assert (cancelled["state"], cancelled["cancelled"], cancelled["notCancelled"]) == ("CANCELLED", 2, 0)
    page = paying.get("/api/v1/payments", params={"status": "CANCELLED", "feed": first["feedId"]}).json()
    assert [payment["paymentId"] for payment in page["payments"]] == ["t1", "t2"]
    third = paying.post("/api/v1/feeds", content=feed_of("t1", "t2"), headers=CSV).json()
    assert (third["feedId"], third["state"]) == (first["feedId"], "CANCELLED")
    assert third["reason"] == "the feed was cancelled"
    assert paying.delete("/api/v1/feeds/none").status_code == 404
    assert paying.get("/api/v1/feeds/none").status_code == 404
    assert paying.get("/api/v1/payments", params={"status": "PAID"}).status_code == 400


def test_a_pain001_document_over_http(paying: httpx.Client) -> None:
    from tests.contracts.payments.test_feeds import pain

    headers = {"Content-Type": "application/xml"}
    answer = paying.post("/api/v1/feeds", content=pain("x1", "x2", total="24.68"), headers=headers)
    assert answer.status_code == 202, answer.text
    feed_id = answer.json()["feedId"]
    assert done(paying, feed_id)["accepted"] == 2
    report = paying.get(f"/api/v1/feeds/{feed_id}/status-report")
    assert (report.status_code, report.headers["content-type"]) == (200, "application/xml")
    assert report.text.count("<OrgnlEndToEndId>x1</OrgnlEndToEndId>") == 1
    assert paying.get("/api/v1/feeds/none/status-report").status_code == 404
    hostile = '<!DOCTYPE x [<!ENTITY a "b">]>' + pain("x3").partition("?>")[2]
    refused = paying.post("/api/v1/feeds", content=hostile, headers=headers)
    assert (refused.status_code, refused.json()["field"]) == (400, "document")
    assert paying.post("/api/v1/feeds", content="{}", headers={"Content-Type": "application/json"}).status_code == 415


def test_a_pain001_document_of_any_size_is_streamed(paying: httpx.Client) -> None:
    """Above 16 MiB it was a 413."""
    from tests.contracts.payments.test_feeds import pain

    def body() -> Iterator[bytes]:
        head, tail = pain("large").split("<PmtInf>")
        yield head.encode()
        for _ in range(300):
            yield b"<!--" + b"x" * 60_000 + b"-->"
        yield f"<PmtInf>{tail}".encode()

    answer = paying.post("/api/v1/feeds", content=body(), headers={"Content-Type": "application/xml"})
    assert answer.status_code == 202, answer.text
    assert done(paying, answer.json()["feedId"])["accepted"] == 1


def test_discarding_an_item_takes_its_payment_along(paying: httpx.Client) -> None:
    """Fault 5: the payment stayed SCHEDULED for ever, its slot booked, and could not be cancelled."""
    body = {
        "paymentId": "d1",
        "amount": "1.00",
        "currency": "EUR",
        "payer": {"name": "Alice", "iban": ALICE},
        "payee": {"name": "Bob", "iban": BOB},
        "executeAt": "2035-03-01T16:00:00Z",
    }
    assert paying.post("/api/v1/payments", json=body).status_code == 202
    assert paying.post("/admin/dispatch/PAYMENT/discard", json={"ids": ["d1"]}).status_code == 200
    assert paying.get("/api/v1/payments/d1").json()["status"] == "CANCELLED"
    assert paying.get("/api/v1/slots/payment:d1").status_code == 404
    assert paying.delete("/api/v1/payments/d1").status_code == 200
    assert paying.get("/api/v1/payments/d1").json()["status"] == "CANCELLED"


def test_only_what_failed_is_retried(paying: httpx.Client) -> None:
    assert paying.post("/api/v1/payments/nobody/retry").status_code == 404
    body = feed_of("r1")
    done(paying, paying.post("/api/v1/feeds", content=body, headers=CSV).json()["feedId"])
    refused = paying.post("/api/v1/payments/r1/retry")
    assert (refused.status_code, refused.json()["title"]) == (409, "Payment Not Retried")
    entries = paying.get("/admin/audit").json()
    assert any(entry["path"] == "/api/v1/payments/r1/retry" and entry["status"] == 409 for entry in entries)


class Bank(BaseHTTPRequestHandler):
    """Refuses every payment once, and keeps no record of what it refused."""

    refused: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        payment_id = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paymentId"]
        status = 201 if payment_id in self.refused else 422
        self.refused.add(payment_id)
        body = json.dumps(
            {"status": "EXECUTED", "reference": f"BANK-{payment_id}"}
            if status == 201
            else {"status": "REJECTED", "reason": "account closed"}
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_refused_payment_is_a_dead_letter_until_an_operator_sends_it_again(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bank) as bank:
        threading.Thread(target=bank.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{bank.server_port}"
        with Service(tmp_path, PACELINE_PAYMENTS_DOWNSTREAM_URL=url) as service, service.client() as client:
            client.post("/api/v1/feeds", content=feed_of("f1", at="2020-01-01T00:00:00Z"), headers=CSV)
            until(lambda: client.get("/api/v1/payments/f1").json()["status"] == "FAILED")
            assert "account closed" in client.get("/api/v1/payments/f1").json()["reason"]
            item = client.get("/admin/dispatch/PAYMENT/items/f1").json()
            assert (item["status"], item["retryCount"]) == ("DEAD_LETTER", 0)
            assert client.post("/api/v1/payments/f1/retry").json()["status"] in ("SCHEDULED", "ACCEPTED", "PROCESSING")
            until(lambda: client.get("/api/v1/payments/f1").json()["status"] == "PROCESSING")
            trail = [entry["statusAfter"] for entry in client.get("/api/v1/payments/f1").json()["audit"]]
            assert trail == ["SCHEDULED", "FAILED", "SCHEDULED", "ACCEPTED", "PROCESSING"]
        bank.shutdown()


def test_a_payment_that_waits_for_its_time_is_cancelled_in_both_modes(paying: httpx.Client) -> None:
    """In mode direct its execution waits in the engine: this was a 409."""
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    done(paying, paying.post("/api/v1/feeds", content=feed_of("h1", at=at), headers=CSV).json()["feedId"])
    cancelled = paying.delete("/api/v1/payments/h1")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "CANCELLED")
    assert paying.get("/admin/dispatch/PAYMENT/items/h1").json()["status"] == "CANCELLED"
    assert paying.get("/api/v1/slots/payment:h1").status_code == 404
    assert paying.delete("/api/v1/payments/h1").status_code == 200, "pressed twice"


def test_a_statement_is_compared_over_http(tmp_path: Path) -> None:
    with Service(tmp_path) as service, service.client() as client:
        client.post("/api/v1/feeds", content=feed_of("s1", "s2", at="2020-01-01T00:00:00Z"), headers=CSV)
        processed = {"status": "PROCESSING"}
        until(lambda: len(client.get("/api/v1/payments", params=processed).json()["payments"]) == 2)
        reference = client.get("/api/v1/payments/s1").json()["reference"]
        lines = [
            "paymentId,amount,currency,status,reference,executedAt",
            f"s1,12.34,EUR,EXECUTED,{reference},2030-01-01T00:00:00Z",
            "s3,1.00,EUR,EXECUTED,BANK-9,2030-01-01T00:00:00Z",
        ]
        answer = client.post("/admin/payments/reconcile", content="\n".join(lines), headers=CSV)
        report = answer.json()
        assert (report["matched"], report["clean"]) == (1, False)
        assert [one["paymentId"] for one in report["missingAtBank"]] == ["s2"]
        assert [one["paymentId"] for one in report["missingHere"]] == ["s3"]
        assert report["different"] == []
        (group,) = report["groups"]
        assert (group["planned"], group["bank"]) == (
            {"count": 2, "amount": "24.68"},
            {"count": 1, "amount": "12.34"},
        )
        wrong = client.post("/admin/payments/reconcile", content="a,b\n", headers=CSV)
        assert (wrong.status_code, wrong.json()["field"]) == (400, "line 1")
        (tmp_path / "statement.csv").write_text("\n".join(lines))
        options = ("--plot", "picture.png", "--differences", "d.jsonl")
        ended = run(tmp_path, "payments", "reconcile", "statement.csv", *options)
        assert ended.returncode == 1, ended.stderr
        assert "missing at the bank: s2 (status): here PROCESSING, bank -" in ended.stdout
        assert ended.stdout.endswith("1 matched, 2 differences\n")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
        kinds = [json.loads(line)["kind"] for line in (tmp_path / "d.jsonl").read_text().splitlines()]
        assert sorted(kinds) == ["missingAtBank", "missingHere"]


def test_the_demo_with_chaos_ends_with_a_clean_reconciliation(tmp_path: Path) -> None:
    begun = subprocess.Popen(
        command("demo", "--chaos", "--payments", "90", "--tps", "30", "--plot", "demo.png", "--json"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert begun.stderr is not None
    first = begun.stderr.readline()
    with httpx.Client(base_url=first.split()[-1]) as console:
        assert "<title>" in console.get("/").text
        until(lambda: (console.get("/api/v1/console/overview").json()["flow"] or {}).get("name") == "PAYMENT")
    stdout, stderr = begun.communicate(timeout=120)
    result = json.loads(stdout)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (result["executedOnce"], result["executedMoreThanOnce"]) == (90, 0), stderr
    assert result["peakPerSecond"] <= 30
    assert (result["reconciled"]["matched"], result["reconciled"]["clean"]) == (90, True)
    for word in ("a worker is killed", "the bank is down", "the kill switch is thrown", "is released"):
        assert word in stderr
