"""The report of a run, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.torture.checker import CHECKS
from tests.torture.checker.payments import peaks
from tests.torture.checker.violation import Violation
from tests.torture.history import History

FEATURES = ("limits", "slots", "tasks", "payments", "messages")


def markdown(history: History, violations: Sequence[Violation], picture: str) -> str:
    """The load, the faults, and the checker's result."""
    run = history.run
    verdict = "no promise was broken" if not violations else f"{len(violations)} violations"
    lines = [
        f"## Seed {run['seed']}, {run['minutes']:g} minutes: {verdict}",
        "",
        f"![the run as a picture]({picture})",
        "",
    ]
    lines += ["| calls | answered | refused | unknown | slowest 1 % |", "|---|---|---|---|---|"]
    for feature in FEATURES:
        calls = [call for call in history.calls if call.op.startswith(f"{feature}.")]
        outcomes = Counter(call.outcome for call in calls)
        took = sorted(call.ended - call.began for call in calls if call.outcome == "ok")
        slow = f"{1000 * took[int(0.99 * len(took))]:.0f} ms" if took else ""
        lines.append(f"| {feature} | {outcomes['ok']} | {outcomes['refused']} | {outcomes['unknown']} | {slow} |")
    lines += ["", "| fault | times | seconds |", "|---|---|---|"]
    for what in sorted({fault.what for fault in history.faults}):
        faults = [fault for fault in history.faults if fault.what == what]
        seconds = sum(fault.ended - fault.began for fault in faults)
        lines.append(f"| {what} | {len(faults)} | {seconds:.0f} |")
    lines += ["", *[f"- {text}" for text in _figures(history)], "", f"Checked: {', '.join(CHECKS)}.", ""]
    lines += [f"- **{violation.promise}**: {violation.problem}" for violation in violations]
    return "\n".join(lines).rstrip() + "\n"


def _figures(history: History) -> list[str]:
    bank = history.records["bank"]
    posts = Counter(record["key"] for record in bank if record["method"] == "POST")
    busiest = max((count for _, count in peaks(sorted(record["at"] for record in bank))), default=0)
    statuses = Counter(row["status"] for row in history.rows("payment"))
    begun = Counter(record["item"] for record in history.records["begin"])
    taken = Counter(record["text"] for record in history.records["sms"] if record["taken"])
    late = [record["seconds"] for record in history.records["lag"]]
    keys = {call.request["key"] for call in history.calls if call.op.startswith("limits.")}
    return [
        f"limits: {len(keys)} keys",
        f"slots: {len(history.rows('slot'))} in {len(history.rows('window'))} windows,"
        f" under {len(history.rows('policy'))} versions of the policy",
        f"tasks: {len(history.rows('item'))}, of which {sum(count > 1 for count in begun.values())} ran more than once",
        f"payments: {', '.join(f'{count} {status}' for status, count in sorted(statuses.items()))};"
        f" {len(bank)} calls at the bank, {busiest} of {history.run['tps']} in the busiest second,"
        f" {sum(count > 1 for count in posts.values())} payments sent more than once",
        f"messages: {len(taken)} delivered, {sum(count > 1 for count in taken.values())} of them more than once;"
        f" users above their quota: {_exceeded(history)}",
        *(
            f"after the last fault: {record['left'] or 'nothing'} was left to do after {record['seconds']:.0f} s"
            for record in history.records["settled"]
        ),
        f"this machine: links and clients were late by {max(late, default=0.0):.1f} s at most,"
        f" {sum(late):.0f} s in all",
    ]


def _exceeded(history: History) -> int:
    sent = {
        (call.request["user"], call.request["text"]) for call in history.of("messages.send") if call.outcome == "ok"
    }
    return sum(count > history.run["quota"] for count in Counter(user for user, _ in sent).values())
