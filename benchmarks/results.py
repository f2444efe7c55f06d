"""Stored results: one JSON file per benchmark in `benchmarks/results`, so that one can be repeated alone.

The pages are made from these files (see `benchmarks.pages`); the files are made by `python -m benchmarks --write`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.measure import Row, Spread, Table, Target

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as it was measured."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str]
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark: its tables, when, on what, with which versions."""

    name: str
    measured: datetime
    machine: Mapping[str, str | int | float]
    load: float | None
    """The machine's load average over the last five minutes of the run, if it was noted."""
    versions: Mapping[str, str]
    tables: Sequence[StoredTable]

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables for row in table.rows]

    def measured_row(self, work: str) -> Row | None:
        """The row with this name; None if it was not measured."""
        return next((row for row in self.rows if row.work.strip() == work), None)


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows that have a target."""
    return [row for row in rows if row.target != Target()]


def store(name: str, tables: Sequence[Table], folder: Path = FOLDER) -> Path:
    """Writes what was measured just now, with machine, date and versions."""
    document = {
        "name": name,
        "measured": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "machine": machine(),
        "load": round(os.getloadavg()[1], 2),
        "versions": versions(name),
        "tables": [
            {"title": table.title, "rows": [_row(row) for row in table.rows], "notes": table.notes}
            | ({"figures": table.figures} if table.figures else {})
            for table in tables
        ],
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def load(folder: Path = FOLDER) -> dict[str, Result]:
    """Every stored result by its name."""
    results = [_result(json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]
    return {result.name: result for result in results}


def figure(shown: str) -> float:
    """The number in a figure as tables show it: `58.2k/s` is 58,200.

    Raises:
        ValueError: `shown` begins with no number.
    """
    number = shown.split("/")[0].split()[0].replace(",", "")
    for unit, size in (("k", 1e3), ("M", 1e6)):
        if number.endswith(unit):
            return float(number.removesuffix(unit)) * size
    return float(number)


def _row(row: Row) -> dict[str, Any]:
    return {
        "work": row.work,
        "ours": row.ours,
        "against": row.against,
        "ratio": {"median": row.ratio.median, "low": row.ratio.low, "high": row.ratio.high},
        "target": {"least": row.target.least, "most": row.target.most},
        "met": row.met,
    }


def _result(document: Mapping[str, Any]) -> Result:
    tables = [
        StoredTable(
            table["title"],
            [
                Row(row["work"], row["ours"], row["against"], Spread(**row["ratio"]), Target(**row["target"]))
                for row in table["rows"]
            ],
            table["notes"],
            table.get("figures", {}),
        )
        for table in document["tables"]
    ]
    measured = datetime.fromisoformat(document["measured"])
    return Result(document["name"], measured, document["machine"], document["load"], document["versions"], tables)
