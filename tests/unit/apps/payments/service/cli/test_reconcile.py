"""`paceline payments reconcile`: its errors for a statement or a feed that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.server.cli.command import Paceline, paceline

__all__ = ["paceline"]

STATEMENT = "paymentId,amount,currency,status,reference,executedAt\n"


def test_a_feed_that_does_not_exist_is_not_clean(paceline: Paceline) -> None:
    Path("st.csv").write_text(STATEMENT)
    paceline("migrate", "up")
    paceline("payments", "reconcile", "st.csv")
    said = paceline("payments", "reconcile", "st.csv", "--feed", "nope", "--differences", "d.jsonl", status=1)
    assert "no feed named 'nope'" in said
    assert "--feed:" in paceline("payments", "reconcile", "st.csv", "--feed", "", status=2)


def test_a_statement_that_cannot_be_read_is_named(paceline: Paceline) -> None:
    assert "STATEMENT: nofile.csv can't be read" in paceline("payments", "reconcile", "nofile.csv", status=2)
    Path("folder.csv").mkdir()
    assert "STATEMENT: folder.csv" in paceline("payments", "reconcile", "folder.csv", status=2)
    device = paceline("payments", "reconcile", "/dev/null", "--format", "csv", status=2)
    assert "STATEMENT: /dev/null is no regular file; save it as one first" in device
    assert "FEED: nofile.csv can't be read" in paceline("payments", "submit", "nofile.csv", status=2)


def test_the_picture_is_where_it_is_said_to_be(paceline: Paceline) -> None:
    pytest.importorskip("matplotlib")
    Path("st.csv").write_text(STATEMENT)
    paceline("payments", "reconcile", "st.csv", "--plot", "days")
    assert Path("days.png").read_bytes().startswith(b"\x89PNG")
    assert "--plot: . is a folder" in paceline("payments", "reconcile", "st.csv", "--plot", ".", status=2)
