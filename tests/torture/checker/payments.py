"""Payments: never above the limit at the bank, none twice without a lost answer, none final without the bank's
confirmation."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise

from tests.torture.checker.violation import Violation
from tests.torture.history import History, Record

LEARN_WITHIN = 15.0
"""Seconds in which an undisturbed process has stored the bank's answer."""
FINAL = {"PROCESSING", "FAILED", "CANCELLED"}


def check(history: History) -> list[Violation]:
    return [*_limit(history), *_repeats(history), *_statuses(history)]


def peaks(times: list[float]) -> list[tuple[float, int]]:
    """For each call, how many arrive within the second that begins with it."""
    return [(at, bisect_left(times, at + 1.0 - 1e-6) - index) for index, at in enumerate(times)]


def _limit(history: History) -> list[Violation]:
    tps = history.run["tps"]
    times = sorted(record["at"] for record in history.records["bank"])
    worst = max(peaks(times), key=lambda peak: peak[1], default=(0.0, 0))
    if worst[1] <= tps:
        return []
    problem = f"{worst[1]} calls at the bank within a second of {tps}, at {worst[0] - history.run['at']:.3f} s"
    return [Violation("never above the limit in a sliding second", problem)]


def _repeats(history: History) -> list[Violation]:
    """A call whose verdict was sent is retried only if a fault may have kept the verdict from being stored."""
    calls: dict[str, list[Record]] = defaultdict(list)
    for record in history.records["bank"]:
        if record["method"] == "POST":
            calls[record["key"]].append(record)
    violations = []
    for key, arrivals in calls.items():
        for first, second in pairwise(arrivals):
            is_verdict = 200 <= first["status"] < 300 or first["status"] == 422
            until = min(second["at"], first["at"] + LEARN_WITHIN)
            if is_verdict and not history.is_disturbed(first["at"] - 1.0, until):
                problem = f"{key} came again {second['at'] - first['at']:.3f} s after it was answered {first['status']}"
                violations.append(Violation("no payment twice without a lost answer", problem))
    return violations


def _statuses(history: History) -> list[Violation]:
    executed = {record["key"] for record in history.records["bank"] if record["executed"]}
    refused = {record["key"] for record in history.records["bank"] if record["status"] == 422}
    submitted = {call.request["payment"]: call for call in history.of("payments.submit")}
    accepted = {call.request["payment"] for call in history.of("payments.submit") if call.outcome == "ok"}
    cancelled = {call.request["payment"] for call in history.of("payments.cancel") if call.outcome == "ok"}
    rows = {row["payment"]: row["status"] for row in history.rows("payment")}
    violations = [
        Violation("no payment is lost", f"{payment} was accepted, and is not in the database")
        for payment in accepted - rows.keys()
    ]
    for payment, status in rows.items():
        if status == "PROCESSING" and payment not in executed:
            violations.append(Violation("none final without the bank's word", f"{payment} was not executed"))
        elif status == "FAILED" and payment not in refused:
            violations.append(Violation("none final without the bank's word", f"{payment} was not refused"))
        elif status in ("FAILED", "CANCELLED") and payment in executed:
            violations.append(Violation("none final without the bank's word", f"{payment} is {status}, and executed"))
        elif status not in FINAL | {"UNKNOWN"}:
            violations.append(Violation("no payment is lost", f"{payment} is {status} when all is over"))
        if payment in cancelled and status != "CANCELLED":
            violations.append(Violation("a cancelled payment stays so", f"{payment} is {status}"))
        if (status == "CANCELLED") and payment not in {
            call.request["payment"] for call in history.of("payments.cancel")
        }:
            violations.append(Violation("only callers cancel", f"{payment} is CANCELLED"))
    early = [
        Violation("no payment before its time", f"{record['key']} came early")
        for record in history.records["bank"]
        if record["key"] in submitted
        and record["at"] + history.run["wall"] < submitted[record["key"]].request["due"] - 0.002
    ]
    strange = [
        Violation("only what was submitted is paid", f"{key} was executed") for key in executed - submitted.keys()
    ]
    return [*violations, *early, *strange]
