"""Slots: no window over its limit; an answer stays what it was; nothing lies before its time; none is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime

from tests.torture.checker.violation import Violation
from tests.torture.history import Call, History, Record

MILLISECOND = 0.001


def check(history: History) -> list[Violation]:
    bookings: dict[str, list[Call]] = defaultdict(list)
    for call in history.of("slots.book"):
        if call.outcome == "ok":
            bookings[call.request["event"]].append(call)
    cancels = {call.request["event"]: call for call in history.of("slots.cancel") if call.outcome != "refused"}
    return [
        *_windows(history, bookings, cancels),
        *_answers(bookings, cancels),
        *_times(history, bookings),
        *_rows(history, bookings, cancels),
    ]


def _windows(history: History, bookings: dict[str, list[Call]], cancels: dict[str, Call]) -> list[Violation]:
    """When the last slot of a version came into a window, those of all earlier versions were there already: versions
    follow one another under one lock. Slots that were cancelled, or may have been, are left out."""
    limits = {row["version"]: row["most"] for row in history.rows("policy")}
    windows: dict[str, Counter[int]] = defaultdict(Counter)
    for event, calls in bookings.items():
        if event not in cancels:
            answer = calls[0].answer
            windows[answer["windowStart"]][answer["configVersion"]] += 1
    violations = []
    for start, versions in windows.items():
        taken = 0
        for version, count in sorted(versions.items()):
            taken += count
            if taken > limits[version]:
                problem = f"{taken} slots in {start}, of {limits[version]} under version {version}"
                violations.append(Violation("no window over its limit", problem))
    return violations


def _answers(bookings: dict[str, list[Call]], cancels: dict[str, Call]) -> list[Violation]:
    violations = []
    for event, calls in bookings.items():
        until = cancels[event].began if event in cancels else float("inf")
        answers = {(call.answer["scheduledTime"], call.answer["windowStart"]) for call in calls if call.ended < until}
        if len(answers) > 1:
            violations.append(Violation("an event has one slot", f"{event} was answered {sorted(answers)}"))
        new = [call for call in calls if not call.answer["existing"] and call.ended < until]
        if len(new) > 1:
            violations.append(Violation("an event has one slot", f"{event} was new {len(new)} times"))
    return violations


def _times(history: History, bookings: dict[str, list[Call]]) -> list[Violation]:
    """A slot lies at or after what was requested and, if it is new, after its booking began."""
    violations = []
    for event, calls in bookings.items():
        for call in calls:
            scheduled = seconds(call.answer["scheduledTime"])
            earliest = seconds(call.request["requested"])
            if not call.answer["existing"]:
                earliest = max(earliest, call.began + history.run["wall"] - MILLISECOND)
            if scheduled < earliest - MILLISECOND:
                problem = f"{event} lies {earliest - scheduled:.3f} s too early"
                violations.append(Violation("no slot before its time", problem))
    return violations


def _rows(history: History, bookings: dict[str, list[Call]], cancels: dict[str, Call]) -> list[Violation]:
    rows: dict[str, Record] = {row["event"]: row for row in history.rows("slot")}
    violations = []
    for event, calls in bookings.items():
        if event not in cancels and event not in rows:
            violations.append(Violation("no acknowledged slot is lost", f"{event} is not in the database"))
        elif (
            event not in cancels and abs(rows[event]["scheduled"] - seconds(calls[0].answer["scheduledTime"])) > 0.0015
        ):
            violations.append(Violation("an event has one slot", f"{event} is another in the database"))
    counted = Counter(row["window"] for row in rows.values())
    for row in history.rows("window"):
        if row["taken"] != counted[row["window"]]:
            problem = f"{row['taken']} counted, {counted[row['window']]} there, at {row['window']}"
            violations.append(Violation("a window's count is its number of slots", problem))
    return violations


def seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
