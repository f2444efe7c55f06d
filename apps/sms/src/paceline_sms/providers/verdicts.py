"""What an HTTP status says about a message: the table that the HTTP providers share."""

from __future__ import annotations

from enum import StrEnum


class Meaning(StrEnum):
    """What an answer proves."""

    VERDICT = "verdict"
    """The provider took the message, or refuses it for good."""
    BUSY = "busy"
    """Not taken. The provider works, and limits the rate of calls."""
    AWAY = "away"
    """Not taken. The provider is down, or the connection to it is wrong: an address, a login."""
    UNKNOWN = "unknown"
    """It may have been taken."""


MISCONFIGURED = {401, 403, 404, 405, 407}
NOT_PROCESSED = {408, 425, 429, 503}
"""By their own meaning the request was not processed."""


def meaning_of(status: int, *, has_retry_after: bool) -> Meaning:
    """The meaning of a status."""
    if status == 429 or (status == 503 and has_retry_after):
        return Meaning.BUSY
    if status in NOT_PROCESSED or status in MISCONFIGURED or 300 <= status < 400:
        return Meaning.AWAY
    if status == 409 or status >= 500 or status < 200:
        return Meaning.UNKNOWN
    return Meaning.VERDICT
