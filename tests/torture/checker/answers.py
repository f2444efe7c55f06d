"""Programs: a service never answers 500 whatever fails behind it, and no program exits without a cause. A program

that finds no database at start exits, and its supervisor restarts it.
"""

from __future__ import annotations

from collections import Counter

from tests.torture.checker.violation import Violation
from tests.torture.history import History

EXPECTED = {-1, 0, 200, 202, 404, 409, 429, 503}
"""-1 and 0: there was no connection, or no answer."""
STARTING = 30.0
"""Seconds in which a program has looked for its database."""


def check(history: History) -> list[Violation]:
    statuses = Counter((call.op, call.answer["status"]) for call in history.calls if "status" in call.answer)
    died = [
        Violation("no program ends by itself", f"{record['program']} did, with status {record['status']}")
        for record in history.records["died"]
        if not history.is_disturbed(record["at"] - STARTING, record["at"])
    ]
    return died + [
        Violation("a service answers in its own words", f"{op} was answered {status}, {times} times")
        for (op, status), times in sorted(statuses.items())
        if status not in EXPECTED
    ]
