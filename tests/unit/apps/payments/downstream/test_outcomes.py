"""The table of outcomes: every status, and the documents that show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_payments.downstream import outcomes
from paceline_payments.downstream.outcomes import (
    TABLE,
    Answer,
    Verdict,
    inquiry_of,
    is_trouble,
    reason_of,
    reference_of,
    retry_after_of,
    verdict_of,
)
from paceline_payments.ports import InquiryStatus

LAW = {
    Verdict.EXECUTED: [200, 201, 202, 204, 299],
    Verdict.REJECTED: [400, 402, 422],
    Verdict.MISCONFIGURED: [301, 302, 303, 307, 308, 401, 403, 404, 405, 406, 410, 415, 418],
    Verdict.RETRY: [408, 409, 425, 429, 500, 502, 503, 504, 599],
}
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)
)


@pytest.mark.parametrize(("verdict", "status"), [(verdict, status) for verdict in LAW for status in LAW[verdict]])
def test_the_verdict_on_each_status(verdict: Verdict, status: int) -> None:
    assert verdict_of(Answer(status)) is verdict


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ({"reason": "account blocked"}, Verdict.REJECTED),
        ({"status": "REJECTED"}, Verdict.REJECTED),
        ({"verdict": "sanctioned"}, Verdict.REJECTED),
        ({"error": "invalid_token"}, Verdict.MISCONFIGURED),
        ({"reason": ""}, Verdict.MISCONFIGURED),
        ({"reason": 7}, Verdict.MISCONFIGURED),
        ("<html>Forbidden</html>", Verdict.MISCONFIGURED),
        (None, Verdict.MISCONFIGURED),
    ],
)
def test_403_is_a_verdict_only_if_its_body_says_so(body: Any, verdict: Verdict) -> None:
    assert verdict_of(Answer(403, body)) is verdict


@given(st.integers(100, 599), json_values, st.frozensets(st.integers(400, 599)))
def test_a_payment_is_final_only_by_the_banks_word(status: int, body: Any, rejected: frozenset[int]) -> None:
    verdict = verdict_of(Answer(status, body), rejected)
    assert (verdict is Verdict.EXECUTED) == (200 <= status < 300)
    if verdict is Verdict.REJECTED:
        assert status in rejected or status == 403
    if status in rejected:
        assert verdict is Verdict.REJECTED, "configured"


def test_every_row_of_the_table_is_what_the_code_does() -> None:
    for rule in TABLE:
        assert {verdict_of(Answer(status)) for status in rule.statuses} <= {rule.verdict}
    in_table = {status for rule in TABLE for status in rule.statuses}
    others = {verdict_of(Answer(status)) for status in range(300, 600) if status not in in_table}
    assert others == {Verdict.MISCONFIGURED}, "the last row"


def test_what_is_the_downstreams_own_trouble() -> None:
    assert [status for status in (408, 409, 425, 429, 500, 503) if is_trouble(status)] == [408, 500, 503]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer(200, {"status": "EXECUTED", "reference": "R"}), InquiryStatus.EXECUTED),
        (Answer(200, {"status": "executed"}), InquiryStatus.EXECUTED),
        (Answer(200, {"status": "REJECTED", "reason": "closed"}), InquiryStatus.REJECTED),
        (Answer(200, {"status": "PENDING"}), InquiryStatus.PENDING),
        (Answer(404), InquiryStatus.NEVER_SEEN),
        (Answer(200, {"status": "NEVER_SEEN"}), None),
        (Answer(200, []), None),
        (Answer(405), None),
        (Answer(500, {"status": "EXECUTED"}), None),
    ],
)
def test_what_an_inquiry_says(answer: Answer, status: InquiryStatus | None) -> None:
    result = inquiry_of(answer)
    assert (None if result is None else result.status) == status


@given(st.text(max_size=2000), json_values)
def test_the_banks_words_are_one_short_printable_line(text: str, body: Any) -> None:
    reason = reason_of(Answer(422, body, text))
    assert reason.isprintable()
    assert reason.startswith("the downstream answered 422")
    assert len(reason) <= 340


def test_the_reason_and_the_reference() -> None:
    assert reason_of(Answer(422, {"reason": "account\nclosed"})) == "the downstream answered 422: account closed"
    assert reason_of(Answer(400, None, "bad  request")) == "the downstream answered 400: bad request"
    assert reference_of(Answer(200, {"reference": "R1"})) == "R1"
    strange_bodies: list[Any] = [[], {"reference": 7}, {"reference": "\0"}, {"reference": ""}, None]
    for strange in strange_bodies:
        assert reference_of(Answer(200, strange)) is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("inf", None), ("soon", None), (None, None)],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_of(header) == seconds


PAGE = Path(__file__).parents[5] / "docs/explanation/payments.md"


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first heading is `first`."""
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def named(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_every_answer_of_the_bank() -> None:
    expected = [[rule.answers, named(rule.verdict), rule.consequence] for rule in outcomes.TABLE]
    assert table("answer") == expected
