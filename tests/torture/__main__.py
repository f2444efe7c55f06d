"""`python -m tests.torture`: a run of some minutes, or another look at the log of one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from tests.torture import checker, report
from tests.torture.history import read
from tests.torture.run import torture

HISTORY = "*.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides the faults; the time, if not given")
    parser.add_argument("--out", type=Path, default=Path("build/torture"), help="where logs, report and picture go")
    parser.add_argument("--check", type=Path, metavar="DIRECTORY", help="only checks the logs of an earlier run")
    parser.add_argument("--stores", choices=["redis", "database"], default="redis", help="where limits are counted")
    options = parser.parse_args()
    if options.check is not None:
        return conclude(options.check)
    directory = (options.out / str(options.seed)).resolve()
    if list(directory.glob(HISTORY)):
        parser.error(f"{directory} has the logs of another run; remove it, or use another --seed or --out")
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, {options.minutes:g} minutes, in {directory}", flush=True)
    logging.basicConfig(filename=directory / "clients.log", level=logging.WARNING)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    # A signal to this run ends all that it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(torture(directory, options.seed, options.minutes, say, redis=options.stores == "redis"))
    return conclude(directory)


def conclude(directory: Path) -> int:
    """Checks the history, writes report and picture, and prints the violations; returns 1 if a guarantee was broken."""
    history = read(*sorted(directory.glob(HISTORY)))
    violations = checker.check(history)
    from tests.torture import timeline  # whose matplotlib takes a second

    timeline.draw(history, directory / "timeline.png")
    text = report.markdown(history, violations, "timeline.png")
    (directory / "report.md").write_text(text)
    print(text)
    print(f"{directory}/report.md, again: python -m tests.torture --check {directory}")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
