"""The limits that a server reports in its responses, and how long to pause calls to it.

Reads `Retry-After`, `RateLimit` (IETF draft, revisions 8 to 10), `X-RateLimit-Remaining` with `X-RateLimit-Reset` or
`X-RateLimit-Reset-After`, and the same without `X-` (revisions 0 to 7). Malformed fields are ignored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

REFUSALS = (403, 429, 503)
"""The statuses with which `Retry-After` asks for fewer calls. GitHub's is 403."""


class ServiceLimit(NamedTuple):
    """One item of `RateLimit`: what remains of a policy, and the seconds until its reset."""

    policy: str
    remaining: int
    reset_after: int | None


def pause_of(status: int, header: Callable[[str], str | None], now: float | None = None) -> float:
    """Seconds to pause after a response. `Retry-After` applies to 403, 429 and 503, and precedes `RateLimit`; the older
    fields come last. `retry-after-ms` is more precise, where there is one."""
    if status in REFUSALS:
        if (milliseconds := _number(header("retry-after-ms"))) is not None:
            return milliseconds / 1000
        if (wait := retry_after(header("Retry-After") or "")) is not None:
            return wait
    if limits := service_limits(header("RateLimit") or ""):
        return float(max((limit.reset_after or 0 for limit in limits if limit.remaining == 0), default=0))
    return _older_pause(status, header, time.time() if now is None else now)


SECONDS, MILLISECONDS = 10**9, 10**11
"""From these numbers on, `X-RateLimit-Reset` is a Unix time: no quota is reset after 30 years."""
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)


def _older_pause(status: int, header: Callable[[str], str | None], now: float) -> float:
    """Seconds to pause by the fields that preceded `RateLimit`. On a 429 nothing remains."""
    for prefix in ("X-RateLimit", "RateLimit"):
        remaining = _number(header(f"{prefix}-Remaining"))
        if remaining == 0 or (remaining is None and status == 429):
            after, reset = _number(header(f"{prefix}-Reset-After")), _number(header(f"{prefix}-Reset"))
            if after is not None:
                return after
            if reset is not None and reset >= SECONDS:
                return max((reset / 1000 if reset >= MILLISECONDS else reset) - now, 0.0)
            if reset is not None:
                return reset
    return 0.0


def _number(text: str | None) -> float | None:
    text = (text or "").strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def retry_after(value: str) -> float | None:
    """The seconds of a `Retry-After`, also if it is a date; `None` if it is neither."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 16 else 1e15
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def service_limits(value: str) -> list[ServiceLimit]:
    """The items of a `RateLimit` field; none if it is malformed."""
    limits = []
    for item in _split(value, ","):
        name, *parameters = (part.strip() for part in _split(item, ";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        remaining, reset_after = _whole(given.get("r")), _whole(given.get("t"))
        if not name or remaining is None:
            return []
        limits.append(ServiceLimit(name.strip('"'), remaining, reset_after))
    return limits


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _split(text: str, separator: str) -> list[str]:
    """Splits at `separator` outside quoted strings."""
    parts, start, quoted, escaped = [], 0, False, False
    for index, sign in enumerate(text):
        if escaped:
            escaped = False
        elif quoted and sign == "\\":
            escaped = True
        elif sign == '"':
            quoted = not quoted
        elif sign == separator and not quoted:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
