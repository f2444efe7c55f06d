"""`paceline payments` and `paceline demo`, as they are typed."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
from pathlib import Path

from lxml import etree

from tests.acceptance.service import command, environment, run, until

HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"
REST = "12.34,EUR,Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z"


def test_a_feed_is_submitted_shown_and_submitted_again(tmp_path: Path) -> None:
    feed = tmp_path / "feed.csv"
    feed.write_text(HEADER + f"p1,{REST}\nbroken\np2,{REST}\n" + f"p3,{REST}".replace("GB29", "GB11"))
    first = run(tmp_path, "payments", "submit", "feed.csv", "--json")
    assert first.returncode == 1, first.stderr
    result = json.loads(first.stdout)
    assert (result["accepted"], result["duplicates"], result["rejectedCount"], result["lines"]) == (2, 0, 2, 4)
    assert [reject["line"] for reject in result["rejected"]] == [3, 5]
    written = [json.loads(line) for line in (tmp_path / "feed.csv.rejected.jsonl").read_text().splitlines()]
    assert [{"line": reject["line"], "reason": reject["reason"]} for reject in written] == result["rejected"]
    assert [reject["raw"] for reject in written] == ["broken", f"p3,{REST}".replace("GB29", "GB11")]
    again = run(tmp_path, "payments", "submit", "feed.csv")
    assert again.stdout.splitlines()[0] == "0 accepted, 2 were there already, 2 rejected"
    shown = json.loads(run(tmp_path, "payments", "show", "p1", "--json").stdout)
    assert (shown["status"], shown["amount"], len(shown["audit"])) == ("SCHEDULED", "12.34", 1)
    slot = json.loads(run(tmp_path, "slots", "show", shown["slotId"], "--json").stdout)
    assert (slot["eventId"], slot["scheduledTime"]) == ("payment:p1", shown["scheduledTime"])
    plain = run(tmp_path, "payments", "show", "p1")
    assert "slotId\tpayment:p1\n" in plain.stdout
    assert "SCHEDULED" in plain.stdout
    cancelled = run(tmp_path, "payments", "cancel", "p1")
    assert "CANCELLED" in cancelled.stdout
    assert run(tmp_path, "payments", "show", "nobody").returncode == 1


def test_a_good_feed_of_json_lines_from_a_pipe(tmp_path: Path) -> None:
    party = {"name": "Alice", "iban": "DE89370400440532013000"}
    line = json.dumps(
        {
            "paymentId": "j1",
            "amount": "1",
            "currency": "JPY",
            "payer": party,
            "payee": {"name": "Bob", "iban": "GB29NWBK60161331926819"},
            "executeAt": "2030-03-01T16:00:00Z",
        }
    )
    ended = run(tmp_path, "payments", "submit", "-", "--format", "jsonl", stdin=line)
    assert (ended.returncode, ended.stdout) == (0, "1 accepted, 0 were there already, 0 rejected\n")


def test_old_payments_are_forgotten_unless_a_rule_may_still_look_for_them(tmp_path: Path) -> None:
    (tmp_path / "feed.csv").write_text(HEADER + f"p1,{REST}\n".replace("2030", "2020") + f"p2,{REST}\n")
    (tmp_path / "rules.toml").write_text('duplicates = "reject"\nduplicate_window = "P36500D"\n')
    assert run(tmp_path, "payments", "submit", "feed.csv").returncode == 0
    for payment in ("p1", "p2"):
        assert run(tmp_path, "payments", "cancel", payment).returncode == 0
    prune = ("prune", "--before", "PT0S", "--json")
    kept = run(tmp_path, *prune, PACELINE_PAYMENTS_RULES="rules.toml")
    assert json.loads(kept.stdout)["payments"] == 0, kept.stderr
    assert json.loads(run(tmp_path, *prune).stdout)["payments"] == 1
    assert run(tmp_path, "payments", "show", "p1").returncode == 1
    assert run(tmp_path, "payments", "show", "p2").returncode == 0, "its time is to come"


def test_a_feeds_status_report_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "feed.csv").write_text(HEADER + f"p1,{REST}\nwrong,{REST}\n".replace("wrong,", "wrong,-"))
    feed_id = json.loads(run(tmp_path, "payments", "submit", "feed.csv", "--json").stdout)["feedId"]
    printed = run(tmp_path, "payments", "status-report", feed_id)
    assert printed.returncode == 0, printed.stderr
    report = etree.fromstring(printed.stdout.encode())
    statuses = [element.text for element in report.iter("{*}TxSts")]
    assert len(statuses) == 2
    assert "RJCT" in statuses
    written = run(tmp_path, "payments", "status-report", feed_id, "--output", "report.xml")
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "written to report.xml\n")
    assert (tmp_path / "report.xml").stat().st_mode & 0o777 == 0o600
    assert etree.parse(tmp_path / "report.xml").getroot().tag == report.tag
    missing = run(tmp_path, "payments", "status-report", "none", "--output", "other.xml")
    assert (missing.returncode, "none" in missing.stderr) == (1, True)
    assert not (tmp_path / "other.xml").exists()


def test_what_is_typed_wrongly(tmp_path: Path) -> None:
    (tmp_path / "feed.txt").write_text("x")
    (tmp_path / "feed.csv").write_text("no,header\n")
    for arguments, word in [
        (("none.csv",), "can't be read"),
        (("feed.txt",), "--format"),
        (("feed.txt", "--format", "xml"), "csv or jsonl"),
        ((".",), "--format"),
        (("feed.csv",), "must name the columns"),
    ]:
        ended = run(tmp_path, "payments", "submit", *arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert word in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    assert run(tmp_path, "demo", "--payments", "0").returncode == 2


def test_an_interrupted_feed_goes_on_where_it_was_left(tmp_path: Path) -> None:
    count = 60_000
    with (tmp_path / "feed.csv").open("w") as feed:
        feed.write(HEADER)
        feed.writelines(f"p{number},{REST}\n" if number % 100 else "broken\n" for number in range(count))
    first = subprocess.Popen(
        command("payments", "submit", "feed.csv"), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    database = tmp_path / "paceline.db"
    until(lambda: first.poll() is not None or (database.exists() and chunks_done(database) > 0))
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 130, errors
    assert "the same command goes on from there" in errors
    done = chunks_done(database)
    assert 0 < done < 61
    second = run(tmp_path, "payments", "submit", "feed.csv", "--json")
    assert f"going on after chunk {done} of 61" in second.stderr
    result = json.loads(second.stdout)
    good, bad = count - count // 100, count // 100
    assert (result["accepted"], result["duplicates"], result["rejectedCount"]) == (good, 0, bad)
    written = [json.loads(line)["line"] for line in (tmp_path / "feed.csv.rejected.jsonl").read_text().splitlines()]
    assert written == [number + 2 for number in range(0, count, 100)], "each refused line once, none forgotten"


def chunks_done(database: Path) -> int:
    """How many chunks of the feed are accepted."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            (done,) = connection.execute("SELECT coalesce(max(chunks_done), 0) FROM paceline_feed").fetchone()
        except sqlite3.OperationalError:
            return 0
    return int(done)


def test_the_demo_keeps_its_promises_and_draws_them(tmp_path: Path) -> None:
    ended = run(tmp_path, "demo", "--payments", "120", "--tps", "40", "--plot", "demo.png", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(ended.stdout)
    assert (result["executedOnce"], result["executedMoreThanOnce"], result["deadLetters"]) == (120, 0, 0)
    assert result["peakPerSecond"] <= 40
    assert (result["turnedAway"], result["statuses"]) == (0, {"PROCESSING": 120})
    assert len(result["rejected"]) == 3
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.png"]
