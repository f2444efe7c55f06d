"""How many SMS a text takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sms.segments import Encoding, count_segments

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
