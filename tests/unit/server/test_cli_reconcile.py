"""`headgate payments reconcile`: its errors for a statement or a feed that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.server.command import Headgate, headgate

__all__ = ["headgate"]

STATEMENT = "paymentId,amount,currency,status,reference,executedAt\n"


def test_a_feed_that_does_not_exist_is_not_clean(headgate: Headgate) -> None:
    Path("st.csv").write_text(STATEMENT)
    headgate("migrate", "up")
    headgate("payments", "reconcile", "st.csv")
    said = headgate("payments", "reconcile", "st.csv", "--feed", "nope", "--differences", "d.jsonl", status=1)
    assert "no feed named 'nope'" in said
    assert "--feed:" in headgate("payments", "reconcile", "st.csv", "--feed", "", status=2)


def test_a_statement_that_cannot_be_read_is_named(headgate: Headgate) -> None:
    assert "STATEMENT: nofile.csv can't be read" in headgate("payments", "reconcile", "nofile.csv", status=2)
    Path("folder.csv").mkdir()
    assert "STATEMENT: folder.csv" in headgate("payments", "reconcile", "folder.csv", status=2)
    device = headgate("payments", "reconcile", "/dev/null", "--format", "csv", status=2)
    assert "STATEMENT: /dev/null is no regular file; save it as one first" in device
    assert "FEED: nofile.csv can't be read" in headgate("payments", "submit", "nofile.csv", status=2)


def test_the_picture_is_where_it_is_said_to_be(headgate: Headgate) -> None:
    pytest.importorskip("matplotlib")
    Path("st.csv").write_text(STATEMENT)
    headgate("payments", "reconcile", "st.csv", "--plot", "days")
    assert Path("days.png").read_bytes().startswith(b"\x89PNG")
    assert "--plot: . is a folder" in headgate("payments", "reconcile", "st.csv", "--plot", ".", status=2)
