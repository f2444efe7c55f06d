"""Payments over HTTP, as a caller meets them: an embedded service, its own dispatcher, a bank of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2 as httpx
import pytest

from tests.acceptance.service import Service, until

FAR = "2030-03-01T16:00:00Z"
HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt"
ALICE, BOB = "DE89370400440532013000", "GB29NWBK60161331926819"


@pytest.fixture(scope="module", params=["queue", "direct"])
def paying(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("payments")
    with Service(directory, PACELINE_PAYMENTS_MODE=request.param) as service, service.client() as client:
        yield client


def document(payment_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "paymentId": payment_id,
        "amount": "12.34",
        "currency": "EUR",
        "payer": {"name": "Alice", "iban": ALICE},
        "payee": {"name": "Bob", "iban": BOB},
        "executeAt": FAR,
        **changes,
    }


def line(payment_id: str, amount: str = "12.34", at: str = FAR) -> str:
    return f"{payment_id},{amount},EUR,Alice,{ALICE},Bob,{BOB},{at}"


def test_a_payment_is_accepted_and_repeated_and_contradicted(paying: httpx.Client) -> None:
    first = paying.post("/api/v1/payments", json=document("p1"))
    assert first.status_code == 202
    answer = first.json()
    assert set(answer) == {"paymentId", "status", "scheduledTime"}
    assert (answer["paymentId"], answer["status"]) == ("p1", "SCHEDULED")
    assert FAR[:-1] <= answer["scheduledTime"]
    again = paying.post("/api/v1/payments", json=document("p1", executeAt="2030-03-01T17:00:00+01:00"))
    assert (again.status_code, again.json()) == (202, answer)
    other = paying.post("/api/v1/payments", json=document("p1", amount="12.35"))
    assert other.status_code == 409
    assert (other.json()["title"], other.json()["field"]) == ("Payment Exists", "paymentId")
    shown = paying.get("/api/v1/payments/p1").json()
    assert (shown["amount"], shown["fee"], shown["valueDate"]) == ("12.34", "0.00", "2030-03-01")
    assert [entry["statusAfter"] for entry in shown["audit"]] == ["SCHEDULED"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"amount": 12.34}, "amount"),
        ({"amount": "1.234"}, "amount"),
        ({"currency": "ZZZ"}, "currency"),
        ({"payer": {"name": "Alice", "iban": "DE00370400440532013000"}}, "payer.iban"),
        ({"payee": {"iban": BOB}}, "payee.name"),
        ({"executeAt": "tomorrow"}, "executeAt"),
        ({"paymentId": ""}, "paymentId"),
        ({"paymentId": "Zahlung-Ä"}, "paymentId"),
        ({"paymentId": "blank-at-the-end "}, "paymentId"),
        ({"extra": 1}, "extra"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_it(paying: httpx.Client, changes: dict[str, Any], field: str) -> None:
    refused = paying.post("/api/v1/payments", json=document("wrong", **changes))
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert refused.headers["content-type"] == "application/problem+json"
    assert paying.get("/api/v1/payments/wrong").status_code == 404


def test_an_amount_that_occurs_twice_is_none(paying: httpx.Client) -> None:
    text = json.dumps(document("twofold")).replace('"amount"', '"amount": "9999.00", "amount"')
    refused = paying.post("/api/v1/payments", content=text, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["field"]) == (400, "amount")
    assert paying.get("/api/v1/payments/twofold").status_code == 404


def test_unknown_configs_and_payments_are_404s(paying: httpx.Client) -> None:
    assert paying.post("/api/v1/payments", json=document("nowhere", configName="none")).status_code == 404
    assert paying.get("/api/v1/payments/nobody").status_code == 404
    assert paying.delete("/api/v1/payments/nobody").status_code == 404
    body = f"{HEADER}\n{line('x')}"
    refused = paying.post(
        "/api/v1/payments/bulk", params={"configName": "none"}, content=body, headers={"Content-Type": "text/csv"}
    )
    assert refused.status_code == 404


def test_a_csv_feed(paying: httpx.Client) -> None:
    lines = [HEADER, line("f1"), line("f2", "0.001"), "broken", line("f3"), line("f1"), line("f1", "99.00")]
    feed = "\r\n".join(lines) + "\r\n"
    answer = paying.post("/api/v1/payments/bulk", content=feed, headers={"Content-Type": "text/csv; charset=utf-8"})
    assert answer.status_code == 200
    result = answer.json()
    assert (result["accepted"], result["duplicates"]) == (2, 1)
    assert [reject["line"] for reject in result["rejected"]] == [3, 4, 7]
    assert all(set(reject) == {"line", "reason"} for reject in result["rejected"])
    assert result["rejected"][0]["reason"].startswith("amount:")
    assert "was used before" in result["rejected"][2]["reason"]
    again = paying.post("/api/v1/payments/bulk", content=feed, headers={"Content-Type": "text/csv"}).json()
    assert (again["accepted"], again["duplicates"], len(again["rejected"])) == (0, 3, 3)


def test_a_feed_of_json_lines_streamed_in_pieces(paying: httpx.Client) -> None:
    def body() -> Iterator[bytes]:
        for number in range(2500):
            yield json.dumps(document(f"j{number}")).encode() + b"\n"
        yield b"not json\n"

    answer = paying.post("/api/v1/payments/bulk", content=body(), headers={"Content-Type": "application/x-ndjson"})
    result = answer.json()
    assert (result["accepted"], result["duplicates"]) == (2500, 0)
    assert result["rejected"] == [{"line": 2501, "reason": "line: is not valid JSON"}]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [("a,b\n", "text/csv", 400), ("", "text/csv", 400), ("[]", "application/json", 415), ("", "text/plain", 415)],
)
def test_a_feed_that_is_none(paying: httpx.Client, body: str, kind: str, status: int) -> None:
    answer = paying.post("/api/v1/payments/bulk", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status


def test_a_payment_for_now_is_made(paying: httpx.Client) -> None:
    now = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert paying.post("/api/v1/payments", json=document("now", executeAt=now)).status_code == 202

    def processed() -> Any:
        shown = paying.get("/api/v1/payments/now").json()
        return shown if shown["status"] == "PROCESSING" else None

    shown = until(processed)
    assert shown["reference"].startswith("BANK-")
    assert [entry["statusAfter"] for entry in shown["audit"]] == ["SCHEDULED", "ACCEPTED", "PROCESSING"]


def test_a_payment_is_cancelled_while_it_waits(paying: httpx.Client) -> None:
    paying.post("/api/v1/payments", json=document("off", executeAt="2031-03-01T16:00:00Z"))
    cancelled = paying.delete("/api/v1/payments/off")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "CANCELLED")
    assert paying.delete("/api/v1/payments/off").status_code == 200
