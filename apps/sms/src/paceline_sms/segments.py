"""How many SMS a text takes: GSM 03.38 packing, or UCS-2; a long text is cut into concatenated segments."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from paceline_sms.graphemes import clusters

_ALPHABET = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ\x1bÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
"""In the order of their septets; at 27 is the escape."""
_BASIC = frozenset(_ALPHABET) - {"\x1b"}
_EXTENSION = {
    "\f": 0x0A,
    "^": 0x14,
    "{": 0x28,
    "}": 0x29,
    "\\": 0x2F,
    "[": 0x3C,
    "~": 0x3D,
    "]": 0x3E,
    "|": 0x40,
    "€": 0x65,
}
"""Each takes two septets: an escape, and this one."""


class Encoding(StrEnum):
    GSM_7 = "GSM-7"
    UCS_2 = "UCS-2"


class _Capacity(NamedTuple):
    alone: int
    """Units in a message of one segment."""
    joined: int
    """Units in each segment of a longer one, beside the six bytes of the concatenation header."""


_CAPACITY = {Encoding.GSM_7: _Capacity(160, 153), Encoding.UCS_2: _Capacity(70, 67)}


_HEADER = b"\x05\x00\x03"
"""Of a part: five bytes follow, information element 0 (concatenated message, 8-bit reference) of three bytes."""
_ESCAPE = 0x1B
_SEPTETS = {character: (number,) for number, character in enumerate(_ALPHABET) if number != _ESCAPE} | {
    character: (_ESCAPE, number) for character, number in _EXTENSION.items()
}


_CHARACTERS = {septets: character for character, septets in _SEPTETS.items()}


class Segments(NamedTuple):
    """The encoding of a text and the number of segments it takes."""

    encoding: Encoding
    number: int


_ONE = Segments(Encoding.GSM_7, 1)


def count_segments(text: str) -> Segments:
    """The encoding that fits `text`, and its segments, as phones and Twilio count them."""
    if len(text) <= _CAPACITY[Encoding.GSM_7].alone and _BASIC.issuperset(text):
        return _ONE
    encoding = encoding_of(text)
    return Segments(encoding, len(_pieces(text, encoding)))


def encoding_of(text: str) -> Encoding:
    """GSM-7 if every character is of its alphabet, else UCS-2."""
    return Encoding.GSM_7 if _SEPTETS.keys() >= set(text) else Encoding.UCS_2


def encoded(text: str) -> bytes:
    """The user data of `text` as one piece: a septet per byte, or UTF-16."""
    return _encoded(text, encoding_of(text))


def decoded(data: bytes) -> str:
    """The text of user data in GSM-7, a septet per byte; `?` stands for what the alphabet does not have."""
    septets = iter(data)
    return "".join(
        _CHARACTERS.get((septet, next(septets, 0)) if septet == _ESCAPE else (septet,), "?") for septet in septets
    )


def parts_of(text: str, reference: int) -> list[bytes]:
    """The user data of each SMS that carries `text`. Several begin with a concatenation header (UDH), by whose
    `reference` the phone joins them."""
    encoding = encoding_of(text)
    coded = [_encoded(piece, encoding) for piece in _pieces(text, encoding)]
    if len(coded) == 1:
        return coded
    head = _HEADER + bytes((reference % 256, len(coded)))
    return [head + bytes((number,)) + part for number, part in enumerate(coded, 1)]


def _pieces(text: str, encoding: Encoding) -> list[str]:
    """The text of each segment. None cuts a character in two: an escape and its character in GSM-7, what a reader sees
    as one character in UCS-2, unless that alone is longer than a segment."""
    alone, joined = _CAPACITY[encoding]
    if encoding is Encoding.GSM_7:
        units = [(character, len(_SEPTETS[character])) for character in text]
    else:
        units = [(character, _utf16_units(character)) for character in text]
    if sum(size for _, size in units) <= alone:
        return [text]
    if encoding is Encoding.UCS_2:
        units = [unit for cluster in clusters(text) for unit in _units_of(cluster, joined)]
    pieces, filled = [""], 0
    for unit, size in units:
        if filled + size > joined:
            pieces.append("")
            filled = 0
        pieces[-1] += unit
        filled += size
    return pieces


def _units_of(cluster: str, most: int) -> list[tuple[str, int]]:
    size = _utf16_units(cluster)
    if size <= most:
        return [(cluster, size)]
    return [(character, _utf16_units(character)) for character in cluster]


def _utf16_units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def _encoded(text: str, encoding: Encoding) -> bytes:
    if encoding is Encoding.UCS_2:
        return text.encode("utf-16-be")
    return bytes(septet for character in text for septet in _SEPTETS[character])
