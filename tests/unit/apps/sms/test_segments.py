"""How many SMS a text takes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sms import SmsMessage
from paceline_sms.graphemes import clusters
from paceline_sms.segments import Encoding, count_segments, decoded, encoded, parts_of
from tests.integration.smsc import read_septets

GSM, UCS = Encoding.GSM_7, Encoding.UCS_2


@pytest.mark.parametrize(
    ("text", "encoding", "number"),
    [
        ("Hello World", GSM, 1),
        ("ä" * 160, GSM, 1),
        ("x" * 161, GSM, 2),
        ("x" * 306, GSM, 2),
        ("x" * 307, GSM, 3),
        ("€" * 80, GSM, 1),
        ("€" * 81, GSM, 2),
        # 152 + an escape that would be cut: the euro goes to the second segment.
        ("x" * 152 + "€" + "x" * 151, GSM, 2),
        ("x" * 152 + "€" + "x" * 152, GSM, 3),
        ("ж" * 70, UCS, 1),
        ("ж" * 71, UCS, 2),
        ("ж" * 135, UCS, 3),
        ("😀" * 35, UCS, 1),
        ("😀" * 36, UCS, 2),
        # 66 + a pair that would be cut.
        ("ж" * 66 + "😀" + "ж" * 65, UCS, 2),
        ("ж" * 66 + "😀" + "ж" * 66, UCS, 3),
        ("x" * 150 + "–", UCS, 3),
        # What a reader sees as one character stays in one segment.
        ("ж" * 66 + "👍🏽" + "ж" * 60, UCS, 2),
        ("ж" * 66 + "👍🏽" + "ж" * 64, UCS, 3),
        ("ж" * 64 + "👨‍👩‍👧‍👦" + "ж" * 60, UCS, 3),
        ("ж" * 66 + "❤️" + "ж" * 66, UCS, 3),
        ("ж" * 66 + "e\u0301" + "ж" * 66, UCS, 3),
        ("ж" + "\u0301" * 134, UCS, 3),
    ],
)
def test_segments_are_counted_as_phones_do(text: str, encoding: Encoding, number: int) -> None:
    assert count_segments(text) == (encoding, number)


@given(st.text(max_size=400))
def test_no_text_takes_less_than_its_units(text: str) -> None:
    encoding, number = count_segments(text)
    units = len(text.encode("utf-16-be")) // 2
    assert number >= (-(-units // 70) if encoding is UCS else 1)
    assert count_segments(text + "x").number >= number


@given(st.text(max_size=400) | st.text("aä€^ 👍🏽\u200d\ufe0f❤", max_size=400), st.integers(0, 2**32))
def test_the_parts_carry_the_whole_text(text: str, reference: int) -> None:
    encoding, number = count_segments(text)
    parts = parts_of(text, reference)
    assert len(parts) == number
    if number > 1:
        heads = [bytes((5, 0, 3, reference % 256, number, place + 1)) for place in range(number)]
        assert [part[:6] for part in parts] == heads
        assert all(len(part) <= 6 + (153 if encoding is GSM else 134) for part in parts)
        parts = [part[6:] for part in parts]
    read = read_septets if encoding is GSM else lambda part: part.decode("utf-16-be")
    assert "".join(map(read, parts)) == text
    assert b"".join(parts) == encoded(text)


def test_every_attempt_makes_the_same_parts() -> None:
    def message(name: str) -> SmsMessage:
        return SmsMessage(name, "+491701234567", "x" * 200, 2, 1, datetime.now(UTC), 7)

    assert message("id-1").parts() == message("id-1").parts()
    assert message("id-1").parts() != message("id-2").parts()
    assert message("id-1").encoding is GSM


@pytest.mark.parametrize(
    "text",
    ["👨‍👩‍👧‍👦", "👍🏽", "❤️", "🏳️‍🌈", "🇩🇪", "e\u0301", "각", "\u1100\u1161\u11a8", "நி", "\u0600a", "🤷🏽‍♂️", "\n", "a"],
)
def test_one_character_is_one_cluster(text: str) -> None:
    assert clusters(f"x{text}x") == (["x", text, "x"])


def test_clusters_are_told_apart() -> None:
    assert clusters("🇩🇪🇫🇷👍👍🏽\r\nab") == ["🇩🇪", "🇫🇷", "👍", "👍🏽", "\r", "\n", "a", "b"]


@given(st.text(alphabet="Grüße für 5 €{}[]~^\\|ΩΔ\n\f"))
def test_user_data_in_gsm_7_is_read_back(text: str) -> None:
    assert decoded(encoded(text)) == text


def test_user_data_that_ends_too_early_is_read_as_far_as_it_goes() -> None:
    assert decoded(b"\x41\x1b") == "A?"
