"""The findings of a check, and its timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from paceline.errors import MissingExtra, PacelineError

TIMEOUT_SECONDS = 5.0
"""The timeout for one request to a server."""
MAX_SECONDS = 12.0
"""The timeout for all requests to one server."""
MAX_OFFSET_SECONDS = 2.0


class Finding(NamedTuple):
    """The result of one check. Advice with an `ok` finding is a warning."""

    name: str
    ok: bool
    summary: str
    advice: str | None = None


def not_loaded(name: str, error: PacelineError) -> Finding:
    """A file or module that the settings name, and that the service does not load."""
    return Finding(name, False, str(error), "correct it: the service does not start like this")


def not_installed(name: str, what: str, error: MissingExtra) -> Finding:
    """Something that the settings need, and whose extra is missing."""
    return Finding(name, False, f"{what}not installed", f"pip install 'paceline[{error.extra}]'")


def loaded(name: str, load: Callable[[], str]) -> Finding:
    """The summary of what `load` loads, or why the service does not start with it."""
    try:
        return Finding(name, True, load())
    except MissingExtra as error:
        return not_installed(name, "", error)
    except PacelineError as error:
        return not_loaded(name, error)


async def within(name: str, what: str, advice: str, work: Awaitable[list[Finding]]) -> list[Finding]:
    """The findings of `work`; an error or timeout becomes a finding about `what`."""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            return await work
    except TimeoutError:
        return [Finding(name, False, f"{what} did not answer within {MAX_SECONDS:g} s", advice)]
    except MissingExtra as error:
        return [not_installed(name, f"{what}: ", error)]
    except PacelineError as error:
        return [Finding(name, False, f"{what}: {error}", advice)]
    except Exception as error:
        # The doctor itself never fails: any exception is a finding.
        return [Finding(name, False, f"{what}: {type(error).__name__}: {error}", advice)]


def clock_finding(name: str, whose: str, now: datetime, sent: datetime, received: datetime) -> Finding:
    """How far a server's clock is from ours. The server read it between our request and its response, so only a time
    outside that span is an offset."""
    offset = max((sent - now).total_seconds(), (now - received).total_seconds(), 0.0)
    wrong = offset > MAX_OFFSET_SECONDS
    advice = f"{whose} clock decides; set both clocks by NTP" if wrong else None
    return Finding(name, not wrong, f"{offset:.3f} s away from {whose}", advice)
