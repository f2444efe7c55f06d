"""What became of a call, by its answer and by the attempts before it."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.downstream.verdicts import (
    MAX_REASON,
    MAX_REFERENCE,
    Answer,
    Fault,
    JsonVerdicts,
    Outcome,
    Verdict,
    after_history,
    after_inquiry,
    is_in_doubt,
    verdict_of_error,
)
from paceline.errors import ConfigurationError

BANK = JsonVerdicts(
    member="status", done={"EXECUTED"}, refused={"REJECTED"}, pending={"PENDING"}, reference="reference"
)
PLAIN = JsonVerdicts()
VERDICTS = st.builds(Verdict, st.sampled_from(Outcome), st.text(max_size=20))
HISTORIES = st.lists(st.sampled_from(Outcome), max_size=6)


def answer(status: int, content: bytes = b"", **header: str) -> Answer:
    fields = {name.replace("_", "-").lower(): value for name, value in header.items()}
    return Answer.of(status, content, lambda name: fields.get(name.lower()))


@given(VERDICTS, HISTORIES)
def test_a_refusal_after_an_attempt_in_doubt_is_unknown_and_nothing_else_changes(
    verdict: Verdict, earlier: list[Outcome]
) -> None:
    after = after_history(verdict, earlier)
    if verdict.outcome is Outcome.REFUSED and is_in_doubt(earlier):
        assert after.outcome is Outcome.UNKNOWN
    else:
        assert after == verdict


@given(VERDICTS, HISTORIES)
def test_history_only_ever_takes_knowledge_away_and_is_applied_once(verdict: Verdict, earlier: list[Outcome]) -> None:
    after = after_history(verdict, earlier)
    assert after.outcome in (verdict.outcome, Outcome.UNKNOWN)
    assert after_history(after, earlier) == after


@given(VERDICTS)
def test_the_first_attempt_is_judged_by_its_answer_alone(verdict: Verdict) -> None:
    assert after_history(verdict, []) == verdict


def test_an_inquiry_decides_and_none_leaves_it_unknown() -> None:
    assert after_inquiry(Verdict(Outcome.REFUSED, "no funds")).outcome is Outcome.REFUSED
    assert after_inquiry(None).outcome is Outcome.UNKNOWN
    broken = Verdict(Outcome.AGAIN, "no route", fault=Fault.DOWNSTREAM)
    assert after_inquiry(broken).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("status", "content", "outcome"),
    [
        (200, b'{"status": "EXECUTED", "reference": "r-1"}', Outcome.DONE),
        (200, b'{"status": " executed "}', Outcome.DONE),
        (202, b'{"status": "PENDING"}', Outcome.PENDING),
        (200, b'{"status": "REJECTED", "reason": "no funds"}', Outcome.REFUSED),
        (500, b'{"status": "REJECTED"}', Outcome.REFUSED),
        (422, b'{"reason": "no such account"}', Outcome.REFUSED),
        (200, b"", Outcome.UNKNOWN),
        (200, b"<html>Log in</html>", Outcome.UNKNOWN),
        (200, b'{"status": "QUEUED"}', Outcome.UNKNOWN),
        (200, b'{"status": 1}', Outcome.UNKNOWN),
        (422, b"<html>Bad</html>", Outcome.UNKNOWN),
        (422, b"", Outcome.UNKNOWN),
        (409, b'{"reason": "already there"}', Outcome.UNKNOWN),
        (500, b"", Outcome.UNKNOWN),
        (503, b"", Outcome.UNKNOWN),
        (408, b"", Outcome.AGAIN),
        (425, b"", Outcome.AGAIN),
        (429, b"", Outcome.AGAIN),
        (401, b"", Outcome.AGAIN),
        (404, b'{"message": "no route"}', Outcome.AGAIN),
        (302, b"", Outcome.AGAIN),
    ],
)
def test_a_bank_whose_body_says_what_happened(status: int, content: bytes, outcome: Outcome) -> None:
    assert BANK(answer(status, content)).outcome is outcome


def test_the_connection_is_blamed_for_what_is_not_about_the_work() -> None:
    for status in (301, 401, 403, 404, 405):
        assert BANK(answer(status)).fault is Fault.CONNECTION
    assert BANK(answer(500)).fault is Fault.DOWNSTREAM
    assert BANK(answer(429)).fault is None


def test_unavailable_with_a_time_was_not_executed() -> None:
    verdict = BANK(answer(503, b"", Retry_After="7"))
    assert (verdict.outcome, verdict.after) == (Outcome.AGAIN, 7.0)


def test_the_reference_and_the_reason_are_read_from_their_members() -> None:
    assert BANK(answer(200, b'{"status": "EXECUTED", "reference": "r-1"}')).reference == "r-1"
    assert PLAIN(answer(200, b'{"id": 17}')).reference == "17"
    assert PLAIN(answer(402, b'{"error": {"message": "card\\n declined"}}')).reason == "402: card declined"


def test_a_plain_api_means_done_by_a_document_or_no_content() -> None:
    assert PLAIN(answer(201, b'{"id": "a"}')).outcome is Outcome.DONE
    assert PLAIN(answer(204)).outcome is Outcome.DONE
    assert PLAIN(answer(200)).outcome is Outcome.UNKNOWN
    assert PLAIN(answer(200, b"<html>Log in</html>")).outcome is Outcome.UNKNOWN
    assert PLAIN(answer(200, b'"ok"')).outcome is Outcome.UNKNOWN


def test_half_an_answer_proves_nothing() -> None:
    whole = b'{"status": "EXECUTED"}'
    assert BANK(Answer.of(200, whole, whole=False)).outcome is Outcome.UNKNOWN


def test_a_status_may_mean_something_else_here() -> None:
    gone = JsonVerdicts(statuses={404: Outcome.REFUSED, 500: Outcome.AGAIN})
    assert gone(answer(404)).outcome is Outcome.REFUSED
    assert gone(answer(500)).outcome is Outcome.AGAIN


def test_the_history_is_applied_to_what_is_read() -> None:
    refusal = answer(422, b'{"reason": "already executed"}')
    assert BANK(refusal).outcome is Outcome.REFUSED
    verdict = BANK(refusal, [Outcome.UNKNOWN])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "already executed" in verdict.reason


@pytest.mark.parametrize(
    ("status", "content", "outcome"),
    [
        (200, b'{"status": "EXECUTED"}', Outcome.DONE),
        (200, b'{"status": "REJECTED"}', Outcome.REFUSED),
        (200, b'{"status": "PENDING"}', Outcome.PENDING),
        (404, b"", Outcome.AGAIN),
        (200, b"", Outcome.UNKNOWN),
        (429, b"", Outcome.UNKNOWN),
        (401, b"", Outcome.UNKNOWN),
        (422, b'{"reason": "bad key"}', Outcome.UNKNOWN),
        (500, b"", Outcome.UNKNOWN),
    ],
)
def test_an_inquiry_is_believed_only_where_it_speaks_of_the_work(status: int, content: bytes, outcome: Outcome) -> None:
    assert BANK.inquiry(answer(status, content)).outcome is outcome


@given(
    st.integers(100, 999),
    st.binary(max_size=200),
    st.text(max_size=40),
    st.booleans(),
    HISTORIES,
    st.sampled_from([0, 1]),
)
def test_no_answer_is_an_error_and_a_broken_one_is_always_unknown(
    status: int, content: bytes, field: str, whole: bool, earlier: list[Outcome], which: int
) -> None:
    verdict = (BANK, PLAIN)[which](Answer.of(status, content, lambda _: field, whole=whole), earlier)
    assert whole or verdict.outcome is Outcome.UNKNOWN
    assert len(verdict.reason) <= MAX_REASON
    assert verdict.reason.isprintable()
    assert not is_in_doubt(earlier) or verdict.outcome is not Outcome.REFUSED


def test_what_the_other_side_says_is_bounded() -> None:
    verdict = PLAIN(answer(200, b'{"id": "' + b"x" * 1000 + b'", "reason": "' + b"y" * 1000 + b'"}'))
    assert len(verdict.reference or "") == MAX_REFERENCE
    assert Answer.of(200, b"[" * 100_000).body is None
    assert Answer.of(200, b'{"amount": 1e999}').body == {"amount": None}


def raised(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "has_left", "outcome", "fault"),
    [
        (TimeoutError(), True, Outcome.UNKNOWN, Fault.DOWNSTREAM),
        (TimeoutError(), False, Outcome.AGAIN, Fault.DOWNSTREAM),
        (ConnectionResetError("reset"), True, Outcome.UNKNOWN, Fault.DOWNSTREAM),
        (ConnectionRefusedError("refused"), True, Outcome.AGAIN, Fault.DOWNSTREAM),
        (raised(RuntimeError("wrapped"), socket.gaierror("no such host")), True, Outcome.AGAIN, Fault.CONNECTION),
        (
            raised(RuntimeError("wrapped"), ssl.SSLCertVerificationError("expired")),
            True,
            Outcome.AGAIN,
            Fault.CONNECTION,
        ),
    ],
)
def test_an_error_leaves_it_unknown_unless_nothing_was_sent(
    error: BaseException, has_left: bool, outcome: Outcome, fault: Fault
) -> None:
    verdict = verdict_of_error(error, has_left=has_left)
    assert (verdict.outcome, verdict.fault) == (outcome, fault)
    assert verdict.reason


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("member", {"done": {"ok"}}),
        ("done", {"member": "status"}),
        ("refused", {"member": "status", "done": {"ok"}, "refused": {"OK"}}),
        ("member", {"member": "a..b", "done": {"ok"}}),
        ("statuses", {"statuses": {20: Outcome.DONE}}),
    ],
)
def test_bad_input_names_the_field(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=field):
        JsonVerdicts(**options)
