"""`python -m benchmarks [--quick | --write] [--strict] [name …]`: runs the tables, all unless some are named."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec

from benchmarks import pages, results
from benchmarks.foreign_logs import kept_apart
from benchmarks.measure import Table
from benchmarks.scale import __main__ as simulation
from benchmarks.scale import answers

TABLES = (
    "admission",
    "slots",
    "slot_replan",
    "dispatch",
    "tasks",
    "lanes",
    "row_versions",
    "sqlite",
    "downstream",
    "payments",
    "sms",
    "envoy",
    "console",
    "storage",
    "idle",
    "command_line",
    "scale",
)
"""Modules of this package with a function `tables(quick) -> list[Table]`."""


def main() -> int:
    present = [name for name in TABLES if find_spec(f"benchmarks.{name}")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(present)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: shows that it runs, not how fast")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--write", action="store_true", help="store the results and fill README and docs with them")
    parser.add_argument("--render", action="store_true", help="only fill README and docs from the stored results")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick shows that it runs, not how fast: its figures are not written. Leave one of the two out")
    if options.render and (options.names or options.write or options.quick):
        parser.error("--render runs nothing: it takes no names and no other option")
    if unknown := set(options.names) - set(present):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    if options.render:
        return _render()
    print(f"Python {platform.python_version()}, {platform.machine()}; ratios of the same round, median of all rounds.")
    with kept_apart() as log:
        tables, failed = measure(options.names or present, quick=options.quick, write=options.write)
    if options.write and answers.are_old(results.load()):
        simulation.write()
    rows = results.judged([row for table in tables for row in table.rows])
    missed = [row for table in tables for row in table.missed]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} targets met")
    for row in missed:
        print(f"  missed: {row.work}: {row.ratio} instead of {row.target}")
    for name in failed:
        print(f"  failed: {name}; its stored result is the last one that was whole")
    if log.stat().st_size:
        print(f"what others logged meanwhile is in {log}")
    else:
        log.unlink()
    if options.write:
        _render()
    return 1 if failed or (missed and options.strict) else 0


def measure(names: Iterable[str], *, quick: bool, write: bool) -> tuple[list[Table], list[str]]:
    """Runs benchmarks and, with `write`, stores each result at once. One that fails is named and stops no other."""
    tables: list[Table] = []
    failed: list[str] = []
    for name in names:
        try:
            measured: list[Table] = importlib.import_module(f"benchmarks.{name}").tables(quick)
        except Exception as error:
            print(f"\n{name} failed: {error!r}", flush=True)
            traceback.print_exc()
            failed.append(name)
            continue
        tables += measured
        if write:
            results.store(name, measured)
    return tables, failed


def _render() -> int:
    changed = pages.render()
    print(f"wrote {', '.join(changed)}" if changed else "README and docs say what the stored results say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
