"""Names as a list of blocked parties compares them: neither case, accents, punctuation nor the order of words matter.
Pure."""

from __future__ import annotations

import re
import unicodedata

_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "æ": "ae", "œ": "oe", "þ": "th", "ı": "i", "ħ": "h"})
"""Letters that Unicode does not decompose into a letter and a mark."""
_DOTS = re.compile(r"(?<=\w)[.'’](?=\w)|[.'’]")
_NO_WORD = re.compile(r"[\W_]+")


def name_key(name: str) -> str:
    """A text that is equal for names that differ only in case, accents, punctuation, spacing and order of words.

    name_key("Müller, J.P.") == name_key("JP MULLER")
    """
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold()).translate(_PLAIN)
    bare = "".join(char for char in plain if not unicodedata.combining(char))
    return " ".join(sorted(_NO_WORD.sub(" ", _DOTS.sub("", bare)).split()))
