"""What feeds and reconciliations refuse before they read a line: unknown parameters, and feeds that do not exist."""

from __future__ import annotations

import pytest

from tests.unit.server.http.test_app import opened

HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt"
LINE = "p1,12.34,EUR,Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z"
STATEMENT = "paymentId,amount,currency,status,reference,executedAt\n"
CSV = {"Content-Type": "text/csv"}


@pytest.mark.parametrize(
    ("address", "field", "meant"),
    [
        ("/api/v1/feeds?controlsum=7", "controlsum", "did you mean controlSum?"),
        ("/api/v1/feeds?cuont=7", "cuont", "did you mean count?"),
        ("/api/v1/payments/bulk?configname=c", "configname", "did you mean configName?"),
    ],
)
async def test_a_misspelled_parameter_keeps_a_feed_out(address: str, field: str, meant: str) -> None:
    async with opened() as client:
        answer = await client.post(address, content=f"{HEADER}\n{LINE}\n", headers=CSV)
        assert (answer.status_code, answer.json().get("field")) == (400, field)
        assert meant in answer.json()["detail"]
        assert (await client.get("/api/v1/payments/p1")).status_code == 404
        assert (await client.get("/api/v1/feeds")).json()["feeds"] == []


async def test_a_misspelled_parameter_compares_nothing() -> None:
    async with opened() as client:
        answer = await client.post("/admin/payments/reconcile?foo=1", content=STATEMENT, headers=CSV)
        assert (answer.status_code, answer.json().get("field")) == (400, "foo")
        assert "is not a parameter here" in answer.json()["detail"]


async def test_a_feed_that_does_not_exist_is_not_clean() -> None:
    async with opened() as client:
        answer = await client.post("/admin/payments/reconcile?feed=nope", content=STATEMENT, headers=CSV)
        assert answer.status_code == 404
        assert "no feed named 'nope'" in answer.json()["detail"]
        listed = await client.get("/api/v1/payments?feed=nope")
        assert (listed.status_code, listed.json()["payments"]) == (200, [])
        sent = await client.post("/api/v1/feeds", content=f"{HEADER}\n{LINE}\n", headers=CSV)
        feed_id = sent.json()["feedId"]
        compared = await client.post(f"/admin/payments/reconcile?feed={feed_id}", content=STATEMENT, headers=CSV)
        assert compared.status_code == 200


async def test_rejects_refuse_a_misspelled_parameter() -> None:
    async with opened() as client:
        sent = await client.post("/api/v1/feeds", content=f"{HEADER}\nbroken\n", headers=CSV)
        answer = await client.get(f"/api/v1/feeds/{sent.json()['feedId']}/rejects?fromat=feed")
        assert (answer.status_code, answer.json()["field"]) == (400, "fromat")
