"""Tables of the command line fit the terminal and lose nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.server.cli.table import GAP, NARROWEST, table

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


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), max_size=5),
    st.integers(4 * NARROWEST + 24 + 4 * len(GAP), 200),
)
def test_no_table_is_wider_than_its_terminal(rows: list[list[str]], width: int) -> None:
    lines = shown(["itemId", "status", "lastError", "detail", "at"], [[*row, TIME] for row in rows], width)
    # Numbers are never wrapped, however long.
    if not any(cell.strip("-0123456789.,") == "" for row in rows for cell in row if len(cell) > NARROWEST):
        assert max(map(len, lines)) <= width
    assert sum(line.count(TIME) for line in lines) >= len(rows)
