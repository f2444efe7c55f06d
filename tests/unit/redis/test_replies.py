"""`ReplyReader` reads what hiredis reads, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.redis.replies import ErrorText, ProtocolError, Reader, ReplyReader, new_reader

INCOMPLETE = object()

lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8).map(str.encode)
leaves = st.one_of(
    st.binary(max_size=12).map(lambda data: b"$%d\r\n%b\r\n" % (len(data), data)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: b":%d\r\n" % number),
    lines.map(lambda line: b"+%b\r\n" % line),
    lines.map(lambda line: b"-ERR %b\r\n" % line),
    st.sampled_from([b"$-1\r\n", b"*-1\r\n", b"$0\r\n\r\n"]),
)
replies = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4).map(lambda parts: b"*%d\r\n%b" % (len(parts), b"".join(parts)))
)


def read(reader: Reader, data: bytes, cuts: list[int]) -> list[Any]:
    """Everything that a reader gives; errors by their text."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found = []
    for start, end in pairwise(edges):
        reader.feed(data[start:end])
        while (reply := reader.gets()) is not INCOMPLETE:
            found.append(reply)
    return [plain(reply) for reply in found]


def plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [plain(part) for part in reply]
    return ("error", str(reply)) if type(reply) is ErrorText else reply


@given(st.lists(replies, max_size=5).map(b"".join), st.lists(st.integers(0, 10_000), max_size=6))
def test_both_readers_read_the_same(data: bytes, cuts: list[int]) -> None:
    fast = new_reader(INCOMPLETE)
    assert not isinstance(fast, ReplyReader), "hiredis is installed here"
    assert read(ReplyReader(INCOMPLETE), data, cuts) == read(fast, data, cuts)


@pytest.mark.parametrize(
    "data", [b"hello\r\n", b"$x\r\n", b"*1\r\n?\r\n", b":1x\r\n", b"$1\r\nabc\r\n", b":" + b"1" * 30]
)
def test_what_is_no_reply_is_an_error(data: bytes) -> None:
    reader = ReplyReader(INCOMPLETE)
    reader.feed(data)
    with pytest.raises(ProtocolError):
        reader.gets()


def test_half_a_reply_is_none() -> None:
    reader = ReplyReader(INCOMPLETE)
    for byte in b"*2\r\n$2\r\nab\r\n:1\r":
        reader.feed(bytes([byte]))
        assert reader.gets() is INCOMPLETE
    reader.feed(b"\n")
    assert reader.gets() == [b"ab", 1]
    assert reader.gets() is INCOMPLETE
