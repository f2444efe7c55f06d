"""Rows of payments: calls a second at a bank that answers after 200 ms, over HTTP, in both modes of counting.

Alone, for so many seconds in each mode: `python -m benchmarks.payments_limit [SECONDS]`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.faults.bank import Bank, largest
from tests.faults.bank_stack import installation

from benchmarks.measure import Row, Spread, Table, Target
from paceline.downstream.rate_gate import SECOND
from paceline.testing.servers.postgres import PostgresServer

TPS = 50
LATENCY = 0.2
RUN_IN = 5
"""Seconds before the count begins: the first batch is claimed, connections are opened."""
MODES = {"departure": Target(least=0.97, most=1.0), "answer": Target(least=round(0.95 / (1 + LATENCY), 2), most=1.0)}
"""At departure: the limit less 3 %. At the answer: the limit over 1 s and the latency, less 5 %."""


def rates(table: Table, quick: bool) -> None:
    """Adds the rows of a minute in each mode; `quick` of ten seconds."""
    rates_over(table, 10 if quick else 60)


def rates_over(table: Table, seconds: int) -> None:
    """Adds rows per mode: calls that arrived ÷ what the limit allows in that time, and the largest sliding second, both
    where the mode counts: as calls leave, or as they arrive."""
    with PostgresServer(fsync=True) as server:
        for mode, target in MODES.items():
            with tempfile.TemporaryDirectory() as folder, Bank(latency=LATENCY) as bank:
                left = _run(bank, Path(folder), server.databases.create(f"bank_{mode}"), mode, seconds)
                times = sorted(arrival.at for arrival in bank.calls())
                begin = times[0] + RUN_IN
                calls = sum(begin <= at < begin + seconds for at in times)
                share = Spread.of([calls / seconds / TPS])
                work = f"calls at {LATENCY * 1000:.0f} ms, limit at {mode}, {seconds} s"
                table.add(Row(work, f"{calls / seconds:.1f}/s", f"limit of {TPS}/s", share, target))
                peaks = {"departure": largest(left, SECOND), "answer": bank.peak(SECOND)}
                most = Spread.of([peaks[mode] / TPS])
                work = f"  the largest second, {'leaving' if mode == 'departure' else 'arriving'}"
                table.add(Row(work, f"{peaks[mode]}", f"limit of {TPS}", most, Target(most=1.0)))
                ways = [arrived - departed for departed, arrived in zip(left, times, strict=False)]
                table.note(
                    f"limit at {mode}: at most {peaks['departure']} calls left and {peaks['answer']} arrived in a"
                    f" sliding second of {TPS}; they arrived {min(ways) * 1e3:.1f} to {max(ways) * 1e3:.1f} ms later"
                )


def _run(bank: Bank, folder: Path, url: str, mode: str, seconds: int) -> list[float]:
    """When the calls left."""
    with installation(folder, bank, url, TPS, PAYMENTS_LIMIT_AT=mode) as installed:
        enough = (RUN_IN + seconds + 3) * TPS
        installed.submit([f"p{number:05d}" for number in range(enough)])
        installed.noted_worker("dispatch")
        needed = (RUN_IN + seconds + 2) * TPS if mode == "departure" else int((RUN_IN + seconds) * TPS / (1 + LATENCY))
        installed.until(lambda: len(bank.arrivals) >= needed or _over(bank, RUN_IN + seconds), within=seconds * 3 + 60)
        return installed.departures


def _over(bank: Bank, seconds: float) -> bool:
    """The counted minute has passed."""
    return bool(bank.arrivals) and bank.arrivals[-1].at - bank.arrivals[0].at > seconds


if __name__ == "__main__":
    alone = Table("Payments: the hard limit")
    rates_over(alone, int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    alone.close()
    sys.exit(1 if alone.missed else 0)
