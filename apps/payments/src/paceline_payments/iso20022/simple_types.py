"""The types of texts in ISO 20022's schemas: the part of XML Schema that these use. Pure."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from functools import lru_cache

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)", re.ASCII)
_ZONE = r"(?:Z|[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00))?"
_DATE = r"(-?(?:[1-9][0-9]{3,8}|0[0-9]{3}))-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?|24:00:00(?:\.0+)?)"
_FORMS = {
    "xs:date": re.compile(_DATE + _ZONE, re.ASCII),
    "xs:dateTime": re.compile(f"{_DATE}T{_TIME}{_ZONE}", re.ASCII),
    "xs:gYear": re.compile(r"-?(?:[1-9][0-9]{3,8}|0[0-9]{3})" + _ZONE, re.ASCII),
    "xs:boolean": re.compile("true|false|0|1"),
    "xs:decimal": _DECIMAL,
    "xs:base64Binary": re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
}
_WORDS = {
    "xs:date": "is no date such as 2027-03-01",
    "xs:dateTime": "is no time such as 2027-03-01T16:00:00Z",
    "xs:gYear": "is no year",
    "xs:boolean": "must be true or false",
    "xs:decimal": "is no decimal number",
    "xs:base64Binary": "is not base64",
}


@dataclass(frozen=True, slots=True)
class SimpleType:
    """What a text may be."""

    base: str = "xs:string"
    min_length: int = 0
    max_length: int | None = None
    patterns: tuple[re.Pattern[str], ...] = ()
    values: frozenset[str] | None = None
    total_digits: int | None = None
    fraction_digits: int | None = None
    min_inclusive: int | None = None

    def value(self, text: str) -> str:
        """The text as it counts: outside of texts for people, white space around it does not."""
        return text if self.base == "xs:string" else text.strip(" \t\n\r")

    def problem(self, text: str) -> str | None:
        """Why the text is none of this type; None if it is."""
        return _problem(self, text)


@lru_cache(maxsize=20_000)
def _problem(of: SimpleType, text: str) -> str | None:
    value = of.value(text)
    if of.base == "xs:string":
        return _text_problem(of, value)
    match = _FORMS[of.base].fullmatch(value)
    if match is None or (of.base in ("xs:date", "xs:dateTime") and not _is_day(*match.groups())):
        return f"{_shown(value)} {_WORDS[of.base]}"
    if of.base == "xs:decimal":
        return _decimal_problem(of, value)
    return _text_problem(of, value)


def _text_problem(of: SimpleType, value: str) -> str | None:
    if len(value) < of.min_length:
        return "is empty" if not value else f"{_shown(value)} has fewer than {of.min_length} characters"
    if of.max_length is not None and len(value) > of.max_length:
        return f"has more than {of.max_length} characters"
    if of.values is not None and value not in of.values:
        some = sorted(of.values)
        return f"{_shown(value)} is not allowed; use {'one of ' if len(some) > 1 else ''}{', '.join(some[:12])}"
    for pattern in of.patterns:
        if pattern.fullmatch(value) is None:
            return f"{_shown(value)} does not have the form {pattern.pattern}"
    return None


def _decimal_problem(of: SimpleType, value: str) -> str | None:
    whole, _, fraction = value.lstrip("+-").partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if of.fraction_digits is not None and len(fraction) > of.fraction_digits:
        return f"{_shown(value)} has more than {of.fraction_digits} decimals"
    if of.total_digits is not None and len(whole) + len(fraction) > of.total_digits:
        return f"{_shown(value)} has more than {of.total_digits} digits"
    if of.min_inclusive is not None and value.startswith("-") and (whole or fraction):
        return f"{_shown(value)} is less than {of.min_inclusive}"
    return _text_problem(of, value)


def _is_day(year: str, month: str, day: str) -> bool:
    number = abs(int(year))
    return number > 0 and int(day) <= calendar.monthrange(2000 + number % 400, int(month))[1]


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")
