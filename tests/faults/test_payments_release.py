"""Four eyes: no feed is paid, and no payment in doubt is sent again, before a second person agrees. Judged by the calls
that reach an independent bank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.faults.bank import Bank, Reply
from tests.faults.bank_stack import Installation, installation
from tests.faults.payment_stack import HEADER
from tests.faults.test_payments_answers import QUICK, TPS

FOUR_EYES = {**QUICK, "PAYMENTS_RELEASE": "four-eyes", "PAYMENTS_BREAKER": "off"}
CSV = {"Content-Type": "text/csv"}
ACCOUNTS = "Payer,DE89370400440532013000,Payee,GB29NWBK60161331926819"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    return "embedded" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@contextmanager
def two_persons(installed: Installation) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """A running service, as Ann and as Ben call it."""
    scopes = [word for scope in ("assign", "read", "admin") for word in ("--scope", scope)]
    secrets = [installed.paceline("tokens", "create", name, *scopes)["token"] for name in ("ann", "ben")]
    serving = installed.serve()
    with ExitStack() as stack:
        ann, ben = (
            stack.enter_context(
                httpx.Client(base_url=serving.base_url, headers={"Authorization": f"Bearer {secret}"}, timeout=30)
            )
            for secret in secrets
        )
        yield ann, ben


def feed_of(*names: str) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return HEADER + "".join(f"{name},10.0{number},EUR,{ACCOUNTS},{now}\n" for number, name in enumerate(names))


def audited(client: httpx.Client, path: str) -> list[tuple[str, int | None]]:
    entries = client.get("/admin/audit", params={"limit": 100}).json()
    return sorted(((entry["caller"], entry["status"]) for entry in entries if entry["path"] == path), key=str)


def test_a_feed_is_paid_once_a_second_person_released_it(tmp_path: Path, database: str) -> None:
    with (
        Bank() as bank,
        installation(tmp_path, bank, database, TPS, **FOUR_EYES) as installed,
        two_persons(installed) as (ann, ben),
    ):
        body = feed_of("p1", "p2")
        sent = ann.post("/api/v1/feeds", content=body + "broken\n", headers=CSV)
        feed = sent.json()
        assert (sent.status_code, feed["state"], feed["submittedBy"], feed["releasedBy"]) == (202, "HELD", "ann", None)
        place = f"/api/v1/feeds/{feed['feedId']}"
        assert (feed["records"], feed["rejected"], feed["accepted"]) == (3, 1, 0)
        assert ann.get("/api/v1/feeds", params={"state": "HELD"}).json()["feeds"][0]["feedId"] == feed["feedId"]
        own = ann.post(f"{place}/release")
        assert (own.status_code, own.json()["type"]) == (403, "urn:paceline:problem:second-person-required")
        assert "ann" in own.json()["detail"]
        assert ben.post("/api/v1/feeds/feed-none/release").status_code == 404
        # The same file again is the same feed, and is not released by that.
        assert ann.post("/api/v1/feeds", content=body + "broken\n", headers=CSV).json()["feedId"] == feed["feedId"]
        assert ann.get(place).json()["state"] == "HELD"
        assert (installed.statuses(), bank.arrivals) == ({}, [])

        released = ben.post(f"{place}/release")
        assert (released.status_code, released.json()["releasedBy"]) == (200, "ben")
        installed.until_statuses(PROCESSING=2)
        assert sorted(call.key for call in bank.calls()) == ["p1", "p2"]
        again = ben.post(f"{place}/release")
        shown = (again.json()["state"], again.json()["submittedBy"], again.json()["releasedBy"])
        assert (again.status_code, shown) == (200, ("DONE", "ann", "ben"))
        late = ann.post(f"{place}/release")
        assert (late.status_code, late.json()["type"]) == (409, "urn:paceline:problem:nothing-to-release")
        assert len(bank.calls()) == 2
        # The end of an entry is written once the response has left.
        in_audit = [("ann", 403), ("ann", 409), ("ben", 200), ("ben", 200)]
        installed.until(lambda: audited(ann, f"{place}/release") == in_audit)
        assert installed.paceline("audit", "verify")["intact"]


def test_a_feed_that_waits_for_release_can_be_cancelled(tmp_path: Path, database: str) -> None:
    with (
        Bank() as bank,
        installation(tmp_path, bank, database, TPS, **FOUR_EYES) as installed,
        two_persons(installed) as (ann, ben),
    ):
        place = f"/api/v1/feeds/{ann.post('/api/v1/feeds', content=feed_of('p1'), headers=CSV).json()['feedId']}"
        cancelled = ann.delete(place).json()
        assert (cancelled["state"], cancelled["cancelled"], cancelled["notCancelled"]) == ("CANCELLED", 0, 0)
        assert ben.post(f"{place}/release").status_code == 409
        assert (installed.statuses(), bank.arrivals) == ({}, [])


def test_nothing_comes_in_beside_a_feed(tmp_path: Path, database: str) -> None:
    with (
        Bank() as bank,
        installation(tmp_path, bank, database, TPS, **FOUR_EYES) as installed,
        two_persons(installed) as (ann, _),
    ):
        single = {
            "paymentId": "single",
            "amount": "1.00",
            "currency": "EUR",
            "payer": {"name": "Payer", "iban": "DE89370400440532013000"},
            "payee": {"name": "Payee", "iban": "GB29NWBK60161331926819"},
            "executeAt": "2030-03-01T16:00:00Z",
        }
        for answer in (
            ann.post("/api/v1/payments", json=single),
            ann.post("/api/v1/payments/bulk", content=feed_of("bulk"), headers=CSV),
        ):
            assert (answer.status_code, answer.json()["type"]) == (403, "urn:paceline:problem:release-required")
            assert "POST /api/v1/feeds" in answer.json()["detail"]
        assert (installed.statuses(), bank.arrivals) == ({}, [])


def test_a_payment_in_doubt_is_retried_by_two_persons(tmp_path: Path, database: str) -> None:
    with (
        Bank(default=lambda key: Reply(500)) as bank,
        installation(tmp_path, bank, database, TPS, **FOUR_EYES) as installed,
        two_persons(installed) as (ann, ben),
    ):
        bank.inquiries = {"doubt": Reply(503)}
        installed.configure(max_dispatch_retries=2, retry_backoff_secs=0.1)
        bank.script = {"clear": [Reply(400, {"status": "REJECTED", "reason": "closed"})]}
        feed = ann.post("/api/v1/feeds", content=feed_of("doubt", "clear"), headers=CSV).json()
        assert ben.post(f"/api/v1/feeds/{feed['feedId']}/release").status_code == 200
        installed.until_statuses(UNKNOWN=1, FAILED=1)
        calls = len(bank.arrivals)

        asked = ann.post("/api/v1/payments/doubt/retry")
        assert (asked.status_code, asked.json()["status"]) == (200, "UNKNOWN")
        assert asked.json()["retryRequestedBy"] == "ann"
        assert asked.json()["reason"], "the reason stays"
        same = ann.post("/api/v1/payments/doubt/retry")
        assert (same.status_code, same.json()["type"]) == (403, "urn:paceline:problem:second-person-required")
        assert len(bank.arrivals) == calls, "nobody was asked yet"

        # Rejected, says the bank: it was in doubt, so the next retry needs two persons as well.
        bank.inquiries = {"doubt": Reply(200, {"status": "REJECTED", "reason": "limit"})}
        decided = ben.post("/api/v1/payments/doubt/retry").json()
        assert (decided["status"], decided["retryRequestedBy"]) == ("FAILED", None)
        redriven = ben.post("/admin/dispatch/PAYMENT/requeue", json={"ids": ["doubt"]})
        assert redriven.status_code == 409, redriven.text
        assert ben.post("/api/v1/payments/doubt/retry").json()["retryRequestedBy"] == "ben"
        assert ben.post("/api/v1/payments/doubt/retry").status_code == 403
        posts = [call.key for call in bank.calls()]
        bank.default = lambda key: Reply(201)
        bank.inquiries = {"doubt": Reply(404)}
        assert ann.post("/api/v1/payments/doubt/retry").json()["status"] in ("SCHEDULED", "ACCEPTED", "PROCESSING")
        installed.until_statuses(PROCESSING=1, FAILED=1)
        assert [call.key for call in bank.calls()][len(posts) :] == ["doubt"]

        # The bank refused this one at once: nobody was ever in doubt, and one person retries it.
        assert ann.post("/api/v1/payments/clear/retry").json()["retryRequestedBy"] is None
        installed.until_statuses(PROCESSING=2)
        history = ann.get("/api/v1/payments/doubt/history").json()["events"]
        wanted = [event["actor"] for event in history if (event["detail"] or "").startswith("a retry is requested")]
        assert wanted == ["ann", "ben"]
        assert installed.paceline("audit", "verify")["intact"]


def test_the_command_line_releases(tmp_path: Path) -> None:
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, **FOUR_EYES) as installed:
        (tmp_path / "feed.csv").write_text(feed_of("p1"))
        held = installed.paceline("payments", "submit", "feed.csv")
        assert (held["state"], held["accepted"]) == ("HELD", 0)
        assert installed.try_paceline("payments", "release", held["feedId"]) == 1, "by the same user"
        with two_persons(installed) as (ann, _):
            (tmp_path / "other.csv").write_text(feed_of("p2"))
            sent = ann.post("/api/v1/feeds", content=(tmp_path / "other.csv").read_text(), headers=CSV).json()
            released = installed.paceline("payments", "release", sent["feedId"])
            assert (released["state"], released["accepted"]) == ("DONE", 1)
            installed.until_statuses(PROCESSING=1)
            assert [call.key for call in bank.calls()] == ["p2"]
            entries = ann.get("/admin/audit", params={"limit": 100}).json()
            assert json.dumps(entries).count(f"payments release {sent['feedId']}") == 1
