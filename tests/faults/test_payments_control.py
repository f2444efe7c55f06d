"""Rules, clearing days, screening and limits, judged by what reaches an independent bank."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults.bank import Bank
from tests.faults.bank_stack import Installation, installation
from tests.faults.payment_stack import HEADER
from tests.faults.test_payments_answers import QUICK, TPS, payment
from tests.integration.test_redis_tls import certificate

CLEARING = """
[clearing.EUR]
zone = "Europe/Brussels"
open = [{ days = ["MON", "TUE", "WED", "THU", "FRI"], from = "00:00", to = "16:00" }]
"""
FRIDAY_1530 = "2030-03-01T14:30:00.000Z"
SATURDAY_NOON = "2030-03-02T11:00:00.000Z"
SCREENING = """
import json
from pathlib import Path
from paceline_payments.screening import Screened, Screening

async def screen(payment):
    verdict = json.loads(Path("verdicts.json").read_text()).get(payment.payment_id, "pass")
    return Screened(Screening(verdict), "on the list of the ministry")
"""


def submit(installed: Installation, lines: list[str]) -> dict[str, object]:
    (installed.directory / "control.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    done = installed.try_paceline("payments", "submit", "control.csv")
    assert done in (0, 1), installed.logs()
    return {row[0]: row[1] for row in installed.rows("SELECT payment_id, status FROM paceline_payment")}


def line(payment_id: str, at: str, amount: str = "10.00", payee: str = "Payee") -> str:
    return f"{payment_id},{amount},EUR,Payer,DE89370400440532013000,{payee},GB29NWBK60161331926819,{at}"


def rejects(installed: Installation) -> dict[str, str]:
    return dict(installed.rows("SELECT payment_id, reason FROM paceline_feed_reject"))


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_who_is_blocked_after_acceptance_is_not_paid(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, **QUICK, PAYMENTS_RULES=str(rules)) as installed:
        installed.start("serve", "paceline", "serve", "--port", "0")
        due = soon(8)
        accepted = submit(installed, [line("listed", due, payee="Mallory García Ltd"), line("other", due, payee="Bob")])
        assert accepted == {"listed": "SCHEDULED", "other": "SCHEDULED"}
        rules.write_text('[blocked]\nnames = ["LTD GARCIA, MALLORY"]\n')
        installed.until_statuses(FAILED=1, PROCESSING=1)
        assert payment(installed, "listed") == ("FAILED", "payee.name: is blocked")
        assert [call.key for call in bank.calls()] == ["other"]
        assert submit(installed, [line("later", due, payee="Mallory Garcia Ltd")]).get("later") is None
        # Once the rule is gone, an operator's retry pays: nothing had left.
        rules.write_text("")
        installed.paceline("payments", "retry", "listed")
        installed.until_statuses(PROCESSING=2)
        assert sorted(call.key for call in bank.calls()) == ["listed", "other"]


def test_the_value_date_is_that_of_the_slot(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(CLEARING)
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, PAYMENTS_RULES=str(rules)) as installed:
        installed.paceline("config", "set", "default", "--max", "1", "--window", "PT1H", "--first-window", "whole")
        submit(installed, [line(f"p{number}", FRIDAY_1530, amount=f"{number + 1}.00") for number in range(2)])
        days = dict(installed.rows("SELECT scheduled_at, value_date FROM paceline_payment ORDER BY scheduled_at"))
        (first, on_time), (second, late) = days.items()
        assert first < "2030-03-01 15:00" < second
        assert (on_time, late) == ("2030-03-01", "2030-03-04"), "the second one's slot is after the cut-off on a Friday"


def test_a_closed_day_is_next_previous_or_rejected(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    for number, (choice, slot, value_date) in enumerate(
        [("next", "2030-03-03 23:00", "2030-03-04"), ("previous", "2030-03-01 11:00", "2030-03-01")]
    ):
        rules.write_text(f'on_closed_day = "{choice}"\n{CLEARING}')
        (tmp_path / choice).mkdir()
        with (
            Bank() as bank,
            installation(tmp_path / choice, bank, "embedded", TPS, PAYMENTS_RULES=str(rules)) as installed,
        ):
            submit(installed, [line(f"p{number}", SATURDAY_NOON)])
            [(scheduled_at, day)] = installed.rows("SELECT scheduled_at, value_date FROM paceline_payment")
            assert (scheduled_at[:16], day) == (slot, value_date), choice
    rules.write_text(f'on_closed_day = "reject"\n{CLEARING}')
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, PAYMENTS_RULES=str(rules)) as installed:
        assert submit(installed, [line("p", SATURDAY_NOON)]) == {}
        assert rejects(installed) == {"p": "executeAt: 2030-03-02 is no clearing day"}


def test_what_the_screening_holds_waits_and_what_it_refuses_is_never_paid(tmp_path: Path) -> None:
    (tmp_path / "listed.py").write_text(SCREENING)
    verdicts = tmp_path / "verdicts.json"
    verdicts.write_text(json.dumps({"refused": "refuse", "held": "hold"}))
    settings = {**QUICK, "PAYMENTS_SCREENING": "listed:screen"}
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, **settings) as installed:
        due = soon(6)
        submit(installed, [line(name, due, payee=name) for name in ("refused", "held", "changed", "good")])
        assert rejects(installed) == {"refused": "payment: refused by the screening: on the list of the ministry"}
        verdicts.write_text(json.dumps({"changed": "refuse", "held": "hold"}))
        installed.start("serve", "paceline", "serve", "--port", "0")
        installed.until_statuses(PROCESSING=1, FAILED=1, SCHEDULED=1)
        assert payment(installed, "changed") == ("FAILED", "refused by the screening: on the list of the ministry")
        assert [call.key for call in bank.calls()] == ["good"]
        verdicts.write_text("{}")
        installed.make_due()
        installed.until_statuses(PROCESSING=2, FAILED=1)
        assert [call.key for call in bank.calls()] == ["good", "held"]


def test_an_account_moves_no_more_a_day_than_it_may(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[daily_limits]\nEUR = "25.00"\n{CLEARING}')
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, PAYMENTS_RULES=str(rules)) as installed:
        accepted = submit(installed, [line(f"p{number}", FRIDAY_1530) for number in range(3)])
        assert len(accepted) == 2
        assert list(rejects(installed).values()) == [
            "amount: the account would move 30.00 EUR on 2030-03-01, and may move 25.00 a day"
        ]
        # Another day has its own limit, and a cancelled payment moves nothing.
        assert len(submit(installed, [line("monday", "2030-03-04T09:00:00Z")])) == 3
        installed.paceline("payments", "cancel", next(iter(accepted)))
        assert len(submit(installed, [line("again", FRIDAY_1530)])) == 4
        assert installed.rows("SELECT count(*) FROM paceline_slot WHERE event_id LIKE 'payment:%'") == [(3,)]


@contextmanager
def nothing_there(_folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextmanager
def unknown_host(_folder: Path) -> Iterator[str]:
    yield "http://bank.invalid"


@contextmanager
def unknown_certificate(folder: Path) -> Iterator[str]:
    """A server with a certificate that nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(folder))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@contextmanager
def silence(_folder: Path) -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    ("place", "words", "reason"),
    [
        (nothing_there, "refuses connections", "refused"),
        (unknown_host, "the host bank.invalid is unknown", "unknown host"),
        (unknown_certificate, "is not trusted", "certificate"),
        (silence, "in time", "timeout"),
    ],
)
def test_why_a_bank_cant_be_reached_is_on_the_payment_the_feed_and_in_the_metrics(
    tmp_path: Path, place: Callable[[Path], AbstractContextManager[str]], words: str, reason: str
) -> None:
    with place(tmp_path) as url, Bank() as bank:
        settings = {**QUICK, "PAYMENTS_DOWNSTREAM_URL": url}
        with installation(tmp_path, bank, "embedded", TPS, **settings) as installed:
            serving = installed.serve()
            submit(installed, [line(f"p{number}", soon(0.1)) for number in range(8)])
            for number in range(8):
                shown = f"/api/v1/payments/p{number}"
                installed.until(lambda path=shown: words in (serving.get(path).json()["reason"] or ""))
            assert words in installed.paceline("payments", "show", "p0")["reason"]
            [(feed_id,)] = installed.rows("SELECT feed_id FROM paceline_feed")
            assert words in serving.get(f"/api/v1/feeds/{feed_id}").json()["reason"]
            assert installed.statuses() == {"SCHEDULED": 8}
            metric = f'payments_downstream_unreachable{{reason="{reason}"}} 1.0'
            installed.until(lambda: metric in serving.get("/metrics").text)
            assert serving.get("/metrics").text.count("payments_downstream_unreachable{") == 7


def test_the_history_names_token_feed_and_line_and_an_altered_row_is_found(tmp_path: Path) -> None:
    settings = {**QUICK, "API_TOKEN": "t" * 32, "ADMIN_TOKEN": "a" * 32, "AUDIT_KEY": "k" * 32}
    with Bank() as bank, installation(tmp_path, bank, "embedded", TPS, **settings) as installed:
        serving = installed.serve()
        serving.headers["Authorization"] = "Bearer " + "t" * 32
        feed = HEADER + f"{line('p1', soon(0.5))}\n{line('p2', soon(0.5))}\n"
        sent = serving.post("/api/v1/feeds", content=feed, headers={"Content-Type": "text/csv"}).json()
        installed.until_statuses(PROCESSING=2)
        events = serving.get("/api/v1/payments/p2/history").json()["events"]
        assert [event["statusAfter"] for event in events] == ["SCHEDULED", "ACCEPTED", "PROCESSING"]
        assert (events[0]["actor"], events[0]["feedId"], events[0]["line"]) == (sent["submittedBy"], sent["feedId"], 3)
        assert [event["actor"] for event in events[1:]] == ["execution", "execution"]
        assert installed.paceline("audit", "verify")["intact"]
        installed._write("UPDATE paceline_payment SET amount_minor = 999999 WHERE payment_id = 'p1'")
        assert installed.try_paceline("audit", "verify") == 1
