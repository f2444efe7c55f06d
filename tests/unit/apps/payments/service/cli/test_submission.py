"""`paceline payments submit` of a feed that was cancelled, before or meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.server.cli import main
from paceline.server.settings import Settings
from paceline_payments.feeds.accepting import Feeds
from paceline_payments.service.cli.payments import _payments

HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"
REST = "12.34,EUR,Alice,DE89370400440532013000,Bob,GB29NWBK60161331926819,2030-03-01T16:00:00Z\n"


@pytest.fixture(autouse=True)
def _feed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACELINE_DATABASE_URL", raising=False)
    Path("feed.csv").write_text(HEADER + f"p1,{REST}p2,{REST}")


def submitted(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[object, str, str]:
    """The exit status, the result, and what was written to standard error."""
    with pytest.raises(SystemExit) as ended:
        main(["payments", "submit", "feed.csv", *options])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


async def cancel(feed_id: str) -> None:
    async with _payments(Settings.load()) as payments:
        await payments.feeds.cancel(feed_id)


def test_a_cancelled_feed_that_is_submitted_again_accepts_nothing_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = submitted(capsys, "--json")
    first = json.loads(out)
    assert (status, first["accepted"], first["state"]) == (0, 2, "DONE")
    asyncio.run(cancel(first["feedId"]))
    status, out, err = submitted(capsys, "--json")
    again = json.loads(out)
    assert (status, again["accepted"], again["duplicates"], again["state"]) == (1, 0, 2, "CANCELLED")
    assert again.keys() == first.keys()
    assert f"feed {first['feedId']} was cancelled" in err
    assert "new ids" in err
    status, out, _ = submitted(capsys)
    assert (status, out) == (1, "0 accepted, 2 were there already, 0 rejected\n")


def test_a_feed_that_is_cancelled_while_it_is_submitted_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show = Feeds.show

    async def cancel_and_show(feeds: Feeds, feed_id: str) -> Any:
        feed = await show(feeds, feed_id)
        monkeypatch.setattr(Feeds, "show", show)
        await feeds.cancel(feed_id)
        return feed

    monkeypatch.setattr(Feeds, "show", cancel_and_show)
    status, out, err = submitted(capsys, "--json")
    assert (status, json.loads(out)["accepted"], json.loads(out)["state"]) == (1, 0, "CANCELLED")
    assert "was cancelled" in err


def test_rejected_records_are_for_their_owner_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """They have names and accounts, and were readable by everybody."""
    Path("feed.csv").write_text(HEADER + "broken\n")
    rejects = Path("feed.csv.rejected.jsonl")
    for _ in range(2):
        assert submitted(capsys)[0] == 1
        assert (rejects.stat().st_mode & 0o777, rejects.read_text().count("broken")) == (0o600, 1)
        rejects.chmod(0o644)


def test_a_feed_that_is_done_is_not_accepted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert submitted(capsys)[0] == 0
    status, out, err = submitted(capsys)
    assert (status, out) == (0, "0 accepted, 2 were there already, 0 rejected\n")
    assert "this feed was submitted before" in err
