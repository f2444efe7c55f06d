"""Programs: whatever is broken behind it, a service answers in its own words, and no program ends by itself."""

from __future__ import annotations

from collections import Counter

from tests.torture.checker.violation import Violation
from tests.torture.history import History

EXPECTED = {-1, 0, 200, 202, 404, 409, 429, 503}
"""-1 and 0: there was no connection, or no answer."""


def check(history: History) -> list[Violation]:
    statuses = Counter((call.op, call.answer["status"]) for call in history.calls if "status" in call.answer)
    died = [Violation("no program ends by itself", f"{record['program']} did") for record in history.records["died"]]
    return died + [
        Violation("a service answers in its own words", f"{op} was answered {status}, {times} times")
        for (op, status), times in sorted(statuses.items())
        if status not in EXPECTED
    ]
