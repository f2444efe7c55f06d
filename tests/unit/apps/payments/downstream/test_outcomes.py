"""The table of outcomes: every status and body, what follows from a history, and the documents that show it."""

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
    next_step,
    reason_of,
    reference_of,
    retry_after_of,
    step_after_inquiry,
    verdict_of,
)
from paceline_payments.history import History, Step
from paceline_payments.ports import InquiryStatus

WITHOUT_A_WORD = {
    Verdict.UNPROVEN: [400, 402, 422],
    Verdict.MISCONFIGURED: [301, 302, 303, 307, 308, 401, 403, 404, 405, 406, 410, 415, 418],
    Verdict.AGAIN: [408, 425, 429],
    Verdict.UNKNOWN: [200, 201, 202, 204, 299, 409, 500, 502, 503, 504, 599],
}
PAGES: list[Any] = [None, "<html>Login</html>", [], {}, {"error": "x"}, {"reason": ""}, {"reason": 7}, {"status": 1}]
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)
)
words = ["EXECUTED", "PENDING", "REJECTED", "rejected", "ACCEPTED", ""]
said = st.sampled_from(words).map(lambda word: {"status": word})
verdicts = st.lists(st.sampled_from(Verdict), min_size=1, max_size=6)


@pytest.mark.parametrize("page", PAGES, ids=str)
@pytest.mark.parametrize("verdict", WITHOUT_A_WORD)
def test_an_answer_without_a_word_in_its_body(verdict: Verdict, page: Any) -> None:
    for status in WITHOUT_A_WORD[verdict]:
        assert verdict_of(Answer(status, page)) is verdict, status


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer(200, {"status": "EXECUTED"}), Verdict.EXECUTED),
        (Answer(201, {"status": " executed "}), Verdict.EXECUTED),
        (Answer(409, {"status": "EXECUTED"}), Verdict.UNKNOWN),
        (Answer(200, {"status": "PENDING"}), Verdict.PENDING),
        (Answer(202, {"status": "PENDING"}), Verdict.PENDING),
        (Answer(503, {"status": "PENDING"}), Verdict.UNKNOWN),
        (Answer(200, {"status": "REJECTED"}), Verdict.REJECTED),
        (Answer(409, {"status": "REJECTED", "reason": "closed"}), Verdict.REJECTED),
        (Answer(500, {"status": "REJECTED"}), Verdict.REJECTED),
        (Answer(401, {"status": "REJECTED"}), Verdict.REJECTED),
        (Answer(401, {"reason": "bad token"}), Verdict.MISCONFIGURED),
        (Answer(404, {"reason": "no such path"}), Verdict.MISCONFIGURED),
        (Answer(403, {"reason": "account blocked"}), Verdict.REJECTED),
        (Answer(403, {"verdict": "sanctioned"}), Verdict.REJECTED),
        (Answer(422, {"reason": "closed"}), Verdict.REJECTED),
        (Answer(503, None, "", 2.0), Verdict.AGAIN),
        (Answer(500, None, "", 2.0), Verdict.UNKNOWN),
        (Answer(200, {"status": "EXECUTED"}, is_whole=False), Verdict.UNKNOWN),
    ],
)
def test_an_answer_with_a_word_in_its_body(answer: Answer, verdict: Verdict) -> None:
    assert verdict_of(answer) is verdict


@given(st.integers(100, 599), said | json_values, st.frozensets(st.integers(400, 599)), st.booleans())
def test_a_payment_is_final_only_by_the_banks_word(
    status: int, body: Any, rejected: frozenset[int], by_status: bool
) -> None:
    verdict = verdict_of(Answer(status, body), rejected, by_status=by_status)
    word = str(body.get("status", "")).strip().upper() if isinstance(body, dict) else ""
    if verdict is Verdict.EXECUTED:
        assert 200 <= status < 300
        assert word == "EXECUTED" or (by_status and word not in ("PENDING", "REJECTED"))
    if verdict is Verdict.REJECTED:
        assert word == "REJECTED" or status in rejected or status in (400, 402, 403, 422)
    assert (verdict is Verdict.REJECTED) >= (word == "REJECTED"), "whatever the status"
    if status in rejected:
        assert verdict is Verdict.REJECTED, "configured"


@given(verdicts, st.booleans(), st.booleans())
def test_what_follows_from_a_history(history: list[Verdict], keeps_key: bool, attempts_left: bool) -> None:
    step = next_step(history, keeps_key=keeps_key, attempts_left=attempts_left)
    in_doubt = Verdict.UNKNOWN in history[:-1]
    if step is Step.REFUSE:
        assert history[-1] is Verdict.REJECTED, "only a refusal ends a payment"
        assert not in_doubt, "and only a proven one"
    if step is Step.REPEAT:
        assert attempts_left
        assert history[-1] in (Verdict.AGAIN, Verdict.UNKNOWN), "nothing decided is sent again"
        assert keeps_key or Verdict.UNKNOWN not in history, "a bank that forgot the key would pay twice"
    if step is Step.POSTPONE:
        assert Verdict.UNKNOWN not in history
    assert (step is Step.ACCEPT) == (history[-1] is Verdict.EXECUTED)
    assert (step is Step.STOP) == (history[-1] is Verdict.MISCONFIGURED)


@given(st.lists(st.sampled_from(Verdict), max_size=6), st.sampled_from([None, *InquiryStatus]))
def test_what_follows_from_an_inquiry(history: list[Verdict], found: InquiryStatus | None) -> None:
    step = step_after_inquiry(history, found)
    assert (step is Step.HOLD) == (found is None), "no answer decides nothing"
    assert (step is Step.ACCEPT) == (found is InquiryStatus.EXECUTED)
    assert (step is Step.AWAIT) == (found is InquiryStatus.PENDING)
    if step is Step.REPEAT:
        assert found is InquiryStatus.NEVER_SEEN or not history, "an operator may retry what was rejected"
    if found is InquiryStatus.NEVER_SEEN and step is Step.REFUSE:
        assert history[-1] in (Verdict.REJECTED, Verdict.UNPROVEN)


@pytest.mark.parametrize(
    ("history", "lifetime", "first"),
    [
        (History(), 60.0, Step.REPEAT),
        (History(in_doubt=True, seconds=59.0), 60.0, Step.REPEAT),
        (History(in_doubt=True, seconds=60.0), 60.0, Step.INQUIRE),
        (History(in_doubt=True, seconds=0.0), None, Step.INQUIRE),
        (History(in_doubt=False, seconds=1.0), 60.0, Step.INQUIRE),
    ],
    ids=["never sent", "key kept", "key forgotten", "no keys", "an operator's retry"],
)
def test_the_first_step_of_an_execution(history: History, lifetime: float | None, first: Step) -> None:
    assert history.first_step(lifetime) is first


def test_every_row_of_the_table_is_what_the_code_does() -> None:
    for rule in TABLE:
        assert {verdict_of(Answer(status)) for status in rule.statuses} <= {rule.verdict}
    in_table = {status for rule in TABLE for status in rule.statuses}
    others = {verdict_of(Answer(status)) for status in range(300, 600) if status not in in_table}
    assert others == {Verdict.MISCONFIGURED}, "the last row"


def test_what_is_the_downstreams_own_trouble() -> None:
    answers = {status: Answer(status) for status in (200, 408, 409, 422, 425, 429, 500, 503)}
    assert [status for status, answer in answers.items() if is_trouble(answer, verdict_of(answer))] == [
        200,
        408,
        500,
        503,
    ]
    assert not is_trouble(Answer(200, {"status": "PENDING"}), Verdict.PENDING)


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


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


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
