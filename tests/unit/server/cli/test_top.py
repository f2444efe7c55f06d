"""`paceline top`: its table and its picture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from paceline.dispatch.model import QueueHistory, QueueStats
from paceline.dispatch.status import Status
from paceline.server.cli.top import lines
from paceline.server.flow import Flow, Recent

NOW = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
AT = int(NOW.timestamp())


def flow(limit: float | None, waiting: int = 2000) -> Flow:
    seconds = {AT - n: 50 for n in range(1, 100)}
    none: dict[int, int] = {}
    history = QueueHistory(NOW, {AT - 50: 2000}, seconds, none, seconds, none, none, none, none)
    stats = QueueStats(
        "INVOICE", {Status.READY: waiting}, timedelta(seconds=50) if waiting else None, late=waiting, running=5
    )
    return Flow.of_queue(stats, Recent.of(history), limit)


def test_the_picture_says_what_waits_and_a_burst_does_not_flatten_what_left() -> None:
    shown = "\n".join(lines([flow(50)], 120))
    assert "INVOICE: 2,000 wait, limit 50/s, peak 50/s" in shown
    assert "2000 (50 s)" in shown
    (done,) = [line for line in shown.splitlines() if "done  " in line and "│" in line]
    assert done.count("█") == 34


def test_without_a_limit_the_largest_count_is_the_scale() -> None:
    shown = "\n".join(lines([flow(None, 0)], 120))
    assert "INVOICE: 0 wait, no limit known, peak 50/s" in shown
    (arrived,) = [line for line in shown.splitlines() if "arrived  " in line and "│" in line]
    assert arrived.count("█") == 1


def test_a_queue_where_nothing_happens_has_no_picture() -> None:
    idle = Flow.of_queue(QueueStats("IDLE", {}, None), Recent.of(QueueHistory(NOW, *({},) * 8)), None)
    assert not any("│" in line and "arrived" in line for line in lines([idle], 120))
