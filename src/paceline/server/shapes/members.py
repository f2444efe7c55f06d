"""JSON schemas of members that many shapes have: ids, names, times, durations."""

from __future__ import annotations

from typing import Any

_INSTANT_PATTERN = (
    r"^(19[7-9][0-9]|20[0-9]{2}|21[0-8][0-9])-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])$"
)

PLAIN = r"^[^\u0000-\u001F\u007F-\u009F\u2028\u2029]+$"
"""What `checked_id` and `checked_name` take. They refuse lone surrogates too, which no JSON text may hold."""

EVENT_ID: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": PLAIN,
    "description": "Your name for the event: 1 to 255 characters, none of them a control character or a line separator."
    " The same id always gets the same slot.",
    "example": "order-123",
}
CONFIG_NAME: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": PLAIN,
    "description": "Which config's windows to use; left out, the service's default config.",
    "example": "default",
}
BOOKED_NAME: dict[str, Any] = CONFIG_NAME | {"pattern": PLAIN.replace("[^", "[^*", 1)}
"""A config that events are booked under: a name with a `*` is a template's."""
CONFIG_NAMES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 8,
    "uniqueItems": True,
    "items": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": BOOKED_NAME["pattern"]},
    "description": "Several configs at once, instead of configName: the slot lies in one open window with room of each,"
    " and is charged in all of them or in none.",
    "example": ["bank", "merchant-7"],
}
INSTANT: dict[str, Any] = {
    "type": "string",
    "pattern": _INSTANT_PATTERN,
    "description": "An ISO-8601 time with its zone (Z or an offset), from 1970 up to the end of 2199.",
    "example": "2027-03-01T16:00:00Z",
}
_SECONDS = r"([1-9][0-9]{0,6}(\.[0-9]{1,3})?|0\.(0[1-9][0-9]?|[1-9][0-9]{0,2}))S"
_MINUTES = r"[1-9][0-9]{0,4}M"
_CLOCK = rf"([1-9][0-9]{{0,2}}H({_MINUTES})?({_SECONDS})?|{_MINUTES}({_SECONDS})?|{_SECONDS})"
DURATION: dict[str, Any] = {
    "type": "string",
    "pattern": rf"^(P([1-9][0-9]?D(T{_CLOCK})?|T{_CLOCK})|{_CLOCK.lower()})$",
    "description": "An ISO-8601 duration without years or months (PT0.5S, PT4S, PT1H30M, P1D), or 4s, 1m30s, 2h.",
}
