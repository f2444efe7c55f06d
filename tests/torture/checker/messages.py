"""Messages: every accepted one is delivered, none that was refused, no quota is exceeded, none comes twice.

With Redis, processes that can't reach it decide in SQL while others do not. Then a quota can be exceeded by what the
others have not written yet (docs/explanation/notifications.md), but no user gets a second quota.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from tests.torture.checker.violation import Violation
from tests.torture.history import History, Record

LEARN_WITHIN = 15.0
"""Seconds in which an undisturbed sender has stored the provider's answer."""


def check(history: History) -> list[Violation]:
    outcomes: dict[str, set[str]] = defaultdict(set)
    user_of: dict[str, int] = {}
    for call in history.of("messages.send"):
        outcomes[call.request["text"]].add(call.outcome)
        user_of[call.request["text"]] = call.request["user"]
    taken: dict[str, list[Record]] = defaultdict(list)
    for record in history.records["sms"]:
        taken[record["text"]].append(record)
    accepted = {text for text, seen in outcomes.items() if "ok" in seen}
    delivered = {text for text, calls in taken.items() if any(call["taken"] for call in calls)}
    refused = {text for text, seen in outcomes.items() if seen == {"refused"}}
    violations = [Violation("every accepted message is delivered", f"{text} was not") for text in accepted - delivered]
    violations += [Violation("nothing that was refused is delivered", f"{text} was") for text in refused & delivered]
    violations += [Violation("only what was sent is delivered", f"{text} was") for text in delivered - outcomes.keys()]
    quota = history.run["quota"]
    for user, count in Counter(user_of[text] for text in accepted | (delivered & outcomes.keys())).items():
        problem = f"user {user} sent {count} of {quota}"
        if count >= 2 * quota:
            violations.append(Violation("nobody gets a second quota", problem))
        elif count > quota and not history.run["redis"]:
            violations.append(Violation("no quota is exceeded", problem))
    return [*violations, *_repeats(history, taken)]


def _repeats(history: History, taken: dict[str, list[Record]]) -> list[Violation]:
    """A message that the provider acknowledged is sent again only if a fault may have hidden its answer."""
    violations = []
    for text, calls in taken.items():
        for first, second in pairwise(calls):
            until = min(second["at"], first["at"] + LEARN_WITHIN)
            if first["status"] == 200 and not history.is_disturbed(first["at"] - 1.0, until):
                problem = f"{text} came again {second['at'] - first['at']:.3f} s after it was taken"
                violations.append(Violation("no message twice without a lost answer", problem))
    return violations
