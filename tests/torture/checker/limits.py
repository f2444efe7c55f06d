"""Limits: counts are linearisable; no span has more than its plan gives; nothing is admitted without the store."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.torture.checker.linearizable import CounterCall, is_linearizable
from tests.torture.checker.violation import Violation
from tests.torture.history import Call, History

COUNTED = ("acquire", "peek", "refund", "reset")


def check(history: History) -> list[Violation]:
    return [*_counts(history), *_rates(history), *_degraded(history)]


def _counts(history: History) -> list[Violation]:
    plans: dict[str, dict[str, Any]] = history.run["plans"]
    limits = {name: plan["limit"] for name, plan in plans.items() if plan["algorithm"] == "fixed_window"}
    keys: dict[str, list[CounterCall]] = defaultdict(list)
    for kind in COUNTED:
        for call in history.of(f"limits.{kind}"):
            if call.outcome != "refused":
                keys[call.request["key"]].append(_counter_call(kind, call))
    return [
        Violation("limits are linearisable", f"no order of {len(calls)} calls on {key} explains their answers")
        for key, calls in keys.items()
        if not is_linearizable(calls, limits)
    ]


def _counter_call(kind: str, call: Call) -> CounterCall:
    plans, cost = tuple(call.request["plans"]), call.request.get("cost", 1)
    if call.outcome == "unknown":
        return CounterCall(kind, plans, cost, call.began, float("inf"))
    remaining = tuple(call.answer.get("remaining", {}).items())
    return CounterCall(kind, plans, cost, call.began, call.ended, call.answer.get("allowed"), remaining)


def _rates(history: History) -> list[Violation]:
    """Calls that lie wholly inside a span were admitted in it, whenever exactly that was."""
    admitted: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in history.of("limits.rate"):
        if call.outcome == "ok" and call.answer["allowed"]:
            admitted[call.request["key"], call.request["plans"][0]].append(call)
    violations = []
    for (key, name), calls in admitted.items():
        plan = history.run["plans"][name]
        calls.sort(key=lambda call: call.ended)
        for first in calls:
            inside = [call.ended - first.began for call in calls if call.began >= first.began]
            for count, span in enumerate(inside, 1):
                if count > _most(plan, span):
                    problem = f"{count} admissions of {key} by {name} within {span:.3f} s"
                    violations.append(Violation("no span over its limit", problem))
                    break
    return violations


def _most(plan: dict[str, Any], span: float) -> float:
    if plan["algorithm"] == "token_bucket":
        return float(plan["capacity"] + plan["perSecond"] * span)
    seconds = float(plan["window"].removeprefix("PT").removesuffix("S"))
    return plan["limit"] if span < seconds else float("inf")


def _degraded(history: History) -> list[Violation]:
    return [
        Violation("nothing is admitted without the store", f"{call.op} of {call.request['key']} was")
        for call in history.calls
        if call.answer.get("degraded") and call.answer["allowed"] and call.op in ("limits.acquire", "limits.rate")
    ]
