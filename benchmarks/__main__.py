"""`python -m benchmarks [--quick] [--strict] [name …]`: runs the tables, all of them unless some are named."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from importlib.util import find_spec

from benchmarks.foreign_logs import kept_apart
from benchmarks.measure import Table, Target

TABLES = ("admission", "slots", "dispatch", "tasks", "sqlite", "payments", "sms", "envoy", "console")
"""Modules of this package with a function `tables(quick) -> list[Table]`."""


def main() -> int:
    present = [name for name in TABLES if find_spec(f"benchmarks.{name}")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(present)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: shows that it runs, not how fast")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    if unknown := set(options.names) - set(present):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    print(f"Python {platform.python_version()}, {platform.machine()}; ratios of the same round, median of all rounds.")
    tables: list[Table] = []
    with kept_apart() as log:
        for name in options.names or present:
            tables += importlib.import_module(f"benchmarks.{name}").tables(options.quick)
    rows = [row for table in tables for row in table.rows if row.target != Target()]
    missed = [row for table in tables for row in table.missed]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} targets met")
    for row in missed:
        print(f"  missed: {row.work}: {row.ratio} instead of {row.target}")
    if log.stat().st_size:
        print(f"what others logged meanwhile is in {log}")
    else:
        log.unlink()
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
