"""Tasks: none is lost, none begins twice under one claim or before its time, and only the last owner settles."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.torture.checker.violation import Violation
from tests.torture.history import History

EARLY = 0.005
"""Seconds by which clocks that are read one after the other may seem to differ."""


def check(history: History) -> list[Violation]:
    queued = {call.request["item"]: call for call in history.of("tasks.enqueue") if call.outcome == "ok"}
    requests = {call.request["item"]: call for call in history.of("tasks.enqueue")}
    rows = {row["item"]: row for row in history.rows("item")}
    begun: dict[str, list[int]] = defaultdict(list)
    violations = []
    for record in history.records["begin"]:
        item = record["item"]
        begun[item].append(record["epoch"])
        if item not in requests:
            violations.append(Violation("only what was queued runs", f"{item} ran"))
        elif record["at"] + history.run["wall"] < requests[item].request["due"] - EARLY:
            early = requests[item].request["due"] - record["at"] - history.run["wall"]
            violations.append(Violation("no task before its time", f"{item} began {early:.3f} s early"))
    for item, epochs in begun.items():
        for epoch, times in Counter(epochs).items():
            if times > 1:
                violations.append(Violation("a claim is executed once", f"{item} began {times} times under {epoch}"))
    ended = {(record["item"], record["epoch"]) for record in history.records["end"]}
    for item in queued:
        row = rows.get(item)
        if row is None:
            violations.append(Violation("no task is lost", f"{item} is not in the database"))
        elif row["status"] != "COMPLETED":
            violations.append(Violation("no task is lost", f"{item} is {row['status']}"))
        elif (item, row["epoch"]) not in ended:
            violations.append(Violation("what is completed has run", f"{item} under {row['epoch']} has not"))
        elif row["epoch"] != max(begun[item]):
            problem = f"{item} was completed under {row['epoch']}, and begun under {max(begun[item])}"
            violations.append(Violation("an outdated claim writes nothing", problem))
        if row is not None and row["completions"] > 1:
            violations.append(Violation("a task is completed once", f"{item} was {row['completions']} times"))
    return violations
