"""How many SMS a text takes: GSM 03.38 packing, or UCS-2; a long text is cut into concatenated segments."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("^{}\\[~]|€\f")
"""Each takes two septets: an escape, and itself."""


class Encoding(StrEnum):
    GSM_7 = "GSM-7"
    UCS_2 = "UCS-2"


class _Capacity(NamedTuple):
    alone: int
    """Units in a message of one segment."""
    joined: int
    """Units in each segment of a longer one, beside the six bytes of the concatenation header."""


_CAPACITY = {Encoding.GSM_7: _Capacity(160, 153), Encoding.UCS_2: _Capacity(70, 67)}


class Segments(NamedTuple):
    """The encoding of a text and the number of segments it takes."""

    encoding: Encoding
    number: int


_ONE = Segments(Encoding.GSM_7, 1)


def count_segments(text: str) -> Segments:
    """The encoding that fits `text`, and its segments. No character is cut in two: neither an escape and its
    character in GSM-7 nor a surrogate pair in UCS-2."""
    if len(text) <= _CAPACITY[Encoding.GSM_7].alone and _BASIC.issuperset(text):
        return _ONE
    encoding = Encoding.GSM_7 if all(c in _BASIC or c in _EXTENDED for c in text) else Encoding.UCS_2
    sizes = [_units(character, encoding) for character in text]
    alone, joined = _CAPACITY[encoding]
    if sum(sizes) <= alone:
        return Segments(encoding, 1)
    count, filled = 1, 0
    for size in sizes:
        if filled + size > joined:
            count, filled = count + 1, 0
        filled += size
    return Segments(encoding, count)


def _units(character: str, encoding: Encoding) -> int:
    if encoding is Encoding.GSM_7:
        return 2 if character in _EXTENDED else 1
    return 2 if ord(character) > 0xFFFF else 1
