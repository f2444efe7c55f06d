"""What is accepted as a message, and read back from the log as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline_sms.model import (
    LARGEST,
    LONGEST_MESSAGE,
    Attempt,
    AttemptEvent,
    Message,
    Outcome,
    checked_integer,
)

NOW = 1_800_000_000_000
MINUTE = 60_000


@pytest.mark.parametrize("value", [None, True, False, "1", 1.0, -1, LARGEST + 1, [], {}])
def test_only_whole_numbers_in_range_are_numbers(value: object) -> None:
    with pytest.raises(InvalidInput, match="user_id: must be a whole number from 0 to 2147483647"):
        checked_integer(value, "user_id", 0)


@pytest.mark.parametrize("message", [None, 5, "", " ", "\n\t ", "x" * (LONGEST_MESSAGE + 1), "half \ud83d", ["m"]])
def test_what_is_no_message_is_refused(message: object) -> None:
    with pytest.raises(InvalidInput, match=r"^message: "):
        Attempt.of(1, message)


@given(st.integers(0, LARGEST), st.text(min_size=1, max_size=50).filter(str.strip))
def test_a_message_survives_the_log_in_ascii(user_id: int, text: str) -> None:
    message = Attempt.of(user_id, text, priority="high", expires_in="PT5M").to_message(NOW, 0)
    assert message.expires_ms == NOW + 5 * MINUTE
    assert message.to_record_value().isascii()
    assert "\x00" not in message.to_record_value()
    assert Message.from_record_value(message.to_record_value()) == message


@pytest.mark.parametrize("value", ["", "{", "5", "null", "[]", "{}", '{"userId": 1, "message": "m"}', "[" * 100_000])
def test_what_is_no_message_is_not_read_as_one(value: str) -> None:
    for kind in (Message, AttemptEvent):
        with pytest.raises(InvalidInput):
            kind.from_record_value(value)


@pytest.mark.parametrize("member", ["userId", "message", "messageId"])
def test_members_of_a_message_have_their_types(member: str) -> None:
    whole = {"userId": 1, "message": "m", "messageId": "i"}
    with pytest.raises(InvalidInput):
        Message.from_record_value(json.dumps(whole | {member: None}))


def test_ids_made_from_keys_are_stable_and_belong_to_a_user() -> None:
    first, again = Attempt.of(1, "m", "k"), Attempt.of(1, "other", "k")
    assert first.message_id == again.message_id
    assert len({first.message_id, Attempt.of(2, "m", "k").message_id, Attempt.of(1, "m", "l").message_id}) == 3
    assert Attempt.of(1, "m").message_id != Attempt.of(1, "m").message_id
    # A user's number and a key can't be mistaken for another user's number and key.
    assert Attempt.of(1, "m", "1:k").message_id != Attempt.of(11, "m", "k").message_id


def test_an_event_survives_the_log() -> None:
    event = AttemptEvent("e", 5, Outcome.RATE_LIMITED, NOW)
    assert AttemptEvent.from_record_value(event.to_record_value()) == event
