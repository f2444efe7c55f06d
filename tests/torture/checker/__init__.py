"""Decides from a history alone whether the guarantees held. It imports nothing of paceline.

Every rule here is sound: what it reports did happen, whatever the order of concurrent calls and the outcome of calls
without an answer. Where a fault can be an explanation (a payment sent twice), only what no fault explains is reported.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.torture.checker import answers, limits, messages, payments, slots, tasks
from tests.torture.checker.violation import Violation
from tests.torture.history import History

CHECKS: dict[str, Callable[[History], list[Violation]]] = {
    "limits": limits.check,
    "slots": slots.check,
    "tasks": tasks.check,
    "payments": payments.check,
    "messages": messages.check,
    "answers": answers.check,
}


def check(history: History) -> list[Violation]:
    """Every guarantee that was broken."""
    return [violation for rule in CHECKS.values() for violation in rule(history)]
