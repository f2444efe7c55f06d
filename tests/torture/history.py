"""The log of a run: one JSON object a line, each with its time by the machine's monotonic clock.

| kind | written by | members |
|---|---|---|
| `run` | the run | `seed`, `minutes`, `wall` (add it to `at` for the time of day), `tps`, `plans`, … |
| `invoke`, `complete` | clients | `call`, `op` and what was requested; then `outcome` and what was answered |
| `fault`, `healed` | the run | `fault` (its number), `what`, `target` |
| `starved` | the run | `program`, and for how many `seconds` until now it mostly waited for a core |
| `bank`, `sms` | the bank, the provider | a call as it arrived, and how it was answered |
| `begin`, `end` | tasks | `item`, `epoch`, `process` |
| `final` | the run | a row of the database when all was over: `table` and its columns |
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Outcome = Literal["ok", "refused", "unknown"]
"""Done; certainly not done; or unknown."""
Record = dict[str, Any]


class Recorder:
    """Appends to a log. Lines are short, so several processes may append to one file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._calls = itertools.count(1)

    def write(self, kind: str, **members: Any) -> None:
        self._file.write(json.dumps({"at": round(time.monotonic(), 6), "kind": kind, **members}) + "\n")

    def invoke(self, op: str, **request: Any) -> int:
        """Notes that a call begins; returns its number."""
        call = next(self._calls)
        self.write("invoke", call=call, op=op, **request)
        return call

    def complete(self, call: int, outcome: Outcome, **answer: Any) -> None:
        self.write("complete", call=call, outcome=outcome, **answer)

    def close(self) -> None:
        self._file.close()


@dataclass
class Call:
    """A client's call. One that never ended has no end, and an unknown outcome."""

    op: str
    began: float
    request: Record
    ended: float = float("inf")
    outcome: Outcome = "unknown"
    answer: Record = field(default_factory=dict)


class Fault(NamedTuple):
    """A fault, from its beginning to its end."""

    began: float
    ended: float
    what: str
    target: str


class History:
    """What the checker reads."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.run: Record = {}
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.records: dict[str, list[Record]] = defaultdict(list)
        """Everything else, by its kind, in order of time."""
        calls: dict[int, Call] = {}
        begun: dict[int, Record] = {}
        for record in sorted(records, key=lambda record: record["at"]):
            match record["kind"]:
                case "run":
                    self.run = record
                case "invoke":
                    calls[record["call"]] = Call(record["op"], record["at"], record)
                case "complete":
                    call = calls[record["call"]]
                    call.ended, call.outcome, call.answer = record["at"], record["outcome"], record
                case "fault":
                    begun[record["fault"]] = record
                case "healed":
                    fault = begun.pop(record["fault"])
                    self.faults.append(Fault(fault["at"], record["at"], fault["what"], fault["target"]))
                case "starved":
                    began = record["at"] - record["seconds"]
                    self.faults.append(Fault(began, record["at"], "starved", record["program"]))
                case kind:
                    self.records[kind].append(record)
        self.faults += [
            Fault(record["at"], float("inf"), record["what"], record["target"]) for record in begun.values()
        ]
        self.calls = list(calls.values())

    def of(self, op: str) -> list[Call]:
        return [call for call in self.calls if call.op == op]

    def rows(self, table: str) -> list[Record]:
        """Rows of the database when all was over."""
        return [record for record in self.records["final"] if record["table"] == table]

    def is_disturbed(self, began: float, ended: float) -> bool:
        """Whether a fault was at work at some time between the two."""
        return any(fault.began <= ended and fault.ended >= began for fault in self.faults)


def read(*paths: Path) -> History:
    """The history in some logs. The last line of a process that was killed may be cut off; it is left out."""
    records = []
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
    return History(records)
