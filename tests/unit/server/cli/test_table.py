"""Tables of the command line fit the terminal and lose nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.dispatch.status import Status
from paceline.server.cli import periodic, queue, slot_records, workers
from paceline.server.cli.table import GAP, table
from paceline_payments.lifecycle import PaymentStatus
from paceline_payments.service.cli import payments

TIME = "2027-09-01T00:00:00.000Z"
ERROR = (
    "the downstream answered 503 Service Unavailable after 30 s: upstream connect error or disconnect before headers"
)


def shown(columns: list[str], rows: list[list[str]], width: int = 80) -> list[str]:
    return list(table(columns, rows, width))


def test_a_narrow_table_is_as_wide_as_its_texts() -> None:
    assert shown(["name", "limit"], [["gold", "10"], ["daily", "1000"]]) == [
        "name   limit",
        "─────  ─────",
        "gold      10",
        "daily   1000",
    ]


def test_the_widest_text_is_wrapped_and_times_are_whole() -> None:
    columns = ["itemId", "status", "executeAt", "retryCount", "lastError"]
    lines = shown(columns, [["pay-000000000001", "DEAD_LETTER", TIME, "5", ERROR], ["pay-2", "READY", TIME, "0", "-"]])
    assert max(map(len, lines)) <= 80
    assert sum(TIME in line for line in lines) == 2
    assert lines[:4] == [
        "itemId            status       executeAt                 retry  lastError",
        "                                                         Count",
        "────────────────  ───────────  ────────────────────────  ─────  ────────────────",
        f"pay-000000000001  DEAD_LETTER  {TIME}      5  the downstream",
    ]
    assert [line[64:] for line in lines[4:9]] == [
        "answered 503",
        "Service",
        "Unavailable",
        "after 30 s:",
        "upstream connect",
    ]


def test_long_headings_are_cut_at_their_humps() -> None:
    columns = ["version", "createdAt", "maxPerWindow", "windowSize", "spread", "maxDelay", "calendar"]
    calendar = '{"zone": "America/New_York", "open": [{"days": ["MON", "TUE"], "from": "09:00", "to": "17:00"}]}'
    lines = shown(columns, [["12", TIME, "1000", "PT4S", "jitter", "PT1H", calendar]])
    assert max(map(len, lines)) <= 80
    assert "maxPer" in lines[0]
    assert "Window" in lines[1]
    assert any(TIME in line for line in lines)
    cut = lines[0].index("calendar")
    assert "".join(line[cut:] for line in lines[3:]).replace(" ", "") == calendar.replace(" ", "")


def test_no_row_is_no_row() -> None:
    assert shown(["name", "scopes"], []) == ["name  scopes", "────  ──────"]


def test_a_text_cannot_steer_the_terminal() -> None:
    assert shown(["lastError"], [["\x1b[2Jgone\nnext"]])[2:] == [" [2Jgone next"]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (
            workers.COLUMNS,
            f"worker-7d9f8b6c5-x2x4z|4711|0.3.0|local|dispatch, sender|PAYMENT, INVOICE|200|17|{TIME}|{TIME}|yes",
        ),
        (periodic.COLUMNS, f"daily-report|REPORT|0 16 * * MON-FRI|-|Europe/Berlin|skip|yes|{TIME}|{TIME}"),
        (["name", "scopes", "created", "expires", "revoked"], f"night-shift|admin assign|{TIME}|{TIME}|{TIME}"),
        (queue.COLUMNS, f"pay-000000000001|DEAD_LETTER|{TIME}|urgent-transfers|0|5|{ERROR}"),
        (queue.GROUP_COLUMNS, f"12000|{ERROR}|pay-000000000001|{TIME}|{TIME}"),
        (payments.LISTED, f"pay-000000000001|PROCESSING|1234567.89|EUR|{TIME}|feed-20270901-0001|{ERROR}"),
        (slot_records.COLUMNS, f"payment:pay-000000000001|{TIME}|CANCELLED|bulk-payments|payments|{ERROR}|cli:ops"),
        (
            ["day", "feed", "currency", "planned", "executed", "bank", "differences"],
            "2027-09-01|feed-20270901-0001|EUR|1000 1234567.89|1000 1234567.89|999 1234321.89|1",
        ),
    ],
)
def test_each_table_fits_eighty_columns(columns: Sequence[str], row: str) -> None:
    cells = row.split("|")
    lines = shown(list(columns), [cells, cells])
    assert max(map(len, lines)) <= 80, "\n".join(lines)
    times = [cell for cell in cells if cell.startswith("2027-")]
    assert sum(line.count(time) for line in lines for time in set(times)) == 2 * len(times), "\n".join(lines)
    assert max(map(len, shown(list(columns), []))) <= 80


def test_rows_that_do_not_fit_side_by_side_are_stacked() -> None:
    columns = ["name", "scopes", "created", "expires", "revoked"]
    rows = [["night-shift", "admin assign", TIME, TIME, TIME], ["ops", "read", TIME, "-", "-"]]
    assert shown(columns, rows) == [
        "name     night-shift",
        "scopes   admin assign",
        f"created  {TIME}",
        f"expires  {TIME}",
        f"revoked  {TIME}",
        "",
        "name     ops",
        "scopes   read",
        f"created  {TIME}",
        "expires  -",
        "revoked  -",
    ]
    assert shown(columns, [["night-shift", "admin assign read", TIME, TIME, TIME]], width=33)[1:3] == [
        "scopes   admin assign read",
        f"created  {TIME}",
    ]


@pytest.mark.parametrize("status", [*Status, *PaymentStatus])
def test_a_status_is_never_broken(status: str) -> None:
    item = "invoice-2030-0000000000000000-1"
    error = "ValueError: " + "x" * 150
    for width in range(60, 140):
        lines = shown(list(queue.COLUMNS), [[item, status, TIME, "default", "5", "3", error]], width)
        assert any(status in line.split() for line in lines), "\n".join(lines)


def test_long_texts_of_stacked_rows_are_wrapped_beside_their_names() -> None:
    lines = shown(["at", "until", "lastError"], [[TIME, TIME, ERROR]], width=50)
    assert lines[2:] == [
        "lastError  the downstream answered 503 Service",
        "           Unavailable after 30 s: upstream",
        "           connect error or disconnect before",
        "           headers",
    ]


def test_headings_without_rows_are_wrapped_between_their_names() -> None:
    assert shown(["host", "concurrency", "startedAt"], [], width=20) == ["host  concurrency", "startedAt"]


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), max_size=5),
    st.integers(len("lastError") + len(GAP) + len(TIME), 200),
)
def test_no_table_is_wider_than_its_terminal(rows: list[list[str]], width: int) -> None:
    lines = shown(["itemId", "status", "lastError", "detail", "at"], [[*row, TIME] for row in rows], width)
    assert max(map(len, lines)) <= width
    assert sum(line.count(TIME) for line in lines) >= len(rows)
