"""Grapheme clusters: what a reader takes for one character, such as an emoji with its skin tone (Unicode Annex 29).

A long SMS is not cut inside one. The tables are those of Unicode 10, by which Twilio counts.
"""

from __future__ import annotations

import re


def _characters(table: str) -> str:
    """The ranges of a character class, from their distances and lengths in base 36."""
    end, ranges = -1, []
    for word in table.split():
        gap, _, length = word.partition("+")
        begin = end + 1 + int(gap, 36)
        end = begin + int(length or "0", 36)
        ranges.append(f"\\U{begin:08x}-\\U{end:08x}")
    return "".join(ranges)


_EXTEND = _characters(
    "lc+33 7n+6 7b+18 1 1+1 1+1 1 20+a 1c+k g 2t+6 2+5 2+1 1+3 z u+q 2j+a 1m+8 y+3 1+8 1+2 1+4 17+2 3c+d 1+v 1j 1 4+7 "
    "4 3+6 a+1 t 1m 1 2+3 8 9 a+1 t+1 1l 4+1 4+1 2+2 3 u+1 3 b+1 1l 4+4 1+1 4 k+1 m+5 1 1m 1+1 1+3 8 8+1 a+1 u 1n 1 c "
    "9 14 1p+2 5+2 1+3 7+1 b+1 t 1m 2 2 3 5+1 7+1 b+1 s+1 1l+1 1 2+3 8 9 a+1 2u 4 2+2 1 8 29 2+6 c+7 2q 2+5 1+1 b+5 "
    "22+1 r 1 1 1j+d 1+4 1+1 5+a 1+z 9 2u+3 1+5 1+1 2+1 p+1 4+2 g+3 d 2+1 6 f jj+2 qa+2 t+2 t+1 u+1 1s+1 1+6 8 2+a 9 "
    "19+2 3b+1 y 3a+2 4+1 9 6+2 63+1 2 1m 1+6 1 1 2+7 6+9 2 1c+e 1t+3 1c 1+4 1 5 14+8 c+1 w+3 2+1 1+2 1k 1+1 3 1+2 "
    "1m+7 2+1 48+2 1+c 1+6 4 6 3+1 5i+1l 1+4 ek 5f+w 2da+2 3x 2o+v fe+5 2x+1 n9w+3 1+9 w+1 28+1 7k 3 4 p+1 4d+1 q+h "
    "1g+7 p+a 1a+2 1c 2+3 2 14 1v+5 2+1 2+1 c 8 1b 1f 1+2 2+1 5+1 1 16+1 8 6m 2 4 fn4 kh+f g+f a6+1 gt 6a 45+4 1ae+2 "
    "1+1 5+3 14+2 4 4l+1 10a 1i+e 1k+2 1d+3 2+1 1x+2 10+4 1+7 1q c+1 1g+8 b+2 2q+2 2 1+1 6 4g 3+7 l+1 1m 1 1 m e+6 "
    "3+4 5f+7 2+2 1 2x 2+5 1 2 1+1 1+1 6j 2+3 6+1 1+1 r+1 2d+7 2 1+1 2y 1 2+5 1 2t+2 2+3 1+4 k5+5 2+1 14+5 2+3 8 9+5 "
    "2+2 1a+c 1+1 ba+6 1+5 1 2a+l 2+6 1+1 1+1 3e+5 3 1+1 1+6 1 fc8+4 1n+6 uw+3 f7u+1 43q 1+2 4+4 8+7 2+6 u+3 44+2 "
    "1iz+1i 4+1d 8 e m+4 1+e 11s+6 1+g 2+6 1+1 1+4 1ph+6 31+6 gzbp+2n 3k+6n"
)
_MARK = _characters(
    "1s3 1j 2+2 8+3 1+1 1e+1 1n+1 6+1 2+1 1i 1m+2 1u 1m+2 8 1+1 1h+1 1o 6+1 2+1 36 1+1 3+2 1+2 1g+2 1p+3 1p+1 1m 1+1 "
    "1+1 2+1 1+1 1i+1 1n+1 5+2 1+2 1h+1 24+1 6+6 j+1 1r 3j 3u+1 1r 4x 9+1 p+1 18 1f5 7+7 1+1 9m+3 2+2 4+1 1+5 68+1 1m "
    "1 l+5 41 1c 5 1+4 1+1 1p u 4+1 2 1o 2+2 1 3+1 1c+7 8+1 4r g+1 3 rhn+1 2 2g+1 1e+f 3y+1 1b 1c+1 4+1 1+3 32+1 2+1 "
    "o 4d 2+1 5 6l+1 1+1 1+1 1 jrn 1 3j 19+2 4+1 37 2d 1c+2 9+1 2z+2 3+1 1 4q+2 v+1 1n 1+3 2+1 2+2 k+1 5t+2 8+1 3 "
    "2z+1 6 1+1 1 2 6m+1 6+3 2 35+2 8+1 1 31 1+1 6 2x+1 4 kg+1 1c t+1 1q bb e 2y 7 2 gbg+19 jc7 6"
)
_CONTROL = _characters("0+9 1+1 1+h 2n+w d 12m 3jl 1ks 2+1 o+6 1d+f 17yn 6o+b 119g+3 43z+7 h405+v 2o+3j 6o+2rz")
_PREPEND = _characters("16o+5 5z 1d cy vf 1f8u 78+1 1o6 23+3 jg")
_BASE = _characters(
    "7j1 63 g+3 2iyf 1o+2 2 2+2 39+1 2+a t 1+8 3 4+2 1+2 y 5l+1 4 l 4+1 4u+2 3+4 2b g+2 9 b gb+4 1+1 6 9+9 3+1 42+c"
)
_GLUED = _characters("7k0 1 2a+1 35 2j 2isj 1h 1g v g 3 1u 1 4d 1b+1 2y 4 57 47 h")
_GLUED_BASE = "\U0001f466-\U0001f469"
_FLAG = "[\U0001f1e6-\U0001f1ff]"
_JOINER = "\u200d"
_TONED = f"[{_EXTEND}]*[\U0001f3fb-\U0001f3ff]"
_LEADING, _VOWEL, _TRAILING = (
    "[\u1100-\u115f\ua960-\ua97c]+",
    "[\u1160-\u11a7\ud7b0-\ud7c6]+",
    "[\u11a8-\u11ff\ud7cb-\ud7fb]+",
)
_SYLLABLE = f"(?:{_LEADING})?(?:[\uac00-\ud7a3]|{_VOWEL})(?:{_TRAILING})?"


def _pattern() -> re.Pattern[str]:
    joined = f"[{_EXTEND}{_MARK}]|{_JOINER}(?:[{_GLUED}]|[{_GLUED_BASE}](?:{_TONED})?)?"
    bases = [f"{_FLAG}{{2}}", _SYLLABLE, _LEADING, _TRAILING, f"[{_BASE}{_GLUED_BASE}]{_TONED}", f"[^\r\n{_CONTROL}]"]
    return re.compile(f"[{_PREPEND}]*(?:{'|'.join(bases)})(?:{joined})*|(?s:.)")


_CLUSTER = _pattern()


def clusters(text: str) -> list[str]:
    """`text`, cut into what a reader takes for one character each."""
    return _CLUSTER.findall(text)
