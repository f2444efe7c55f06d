"""`python -m tests.simulation`: one seed with its history, or all the seeds that fit into some minutes."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections import Counter

from tests.simulation import sqlite
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Outcome, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--scenario", choices=list(SCENARIOS), action="append", help="of these; all, if not given")
    parser.add_argument("--seed", type=int, help="plays this seed alone, and shows what happened")
    parser.add_argument("--minutes", type=float, default=1.0, help="plays seeds for so long")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--keep-going", action="store_true", help="goes on after a failure")
    options = parser.parse_args()
    names = options.scenario or list(SCENARIOS)
    sqlite.prepare()
    if options.seed is not None:
        outcomes = [(name, simulate(name, SCENARIOS[name], options.seed)) for name in names]
        for name, outcome in outcomes:
            print("\n".join([f"{name} {options.seed}", *outcome.history]))
            show(name, options.seed, outcome)
        return int(any(outcome.failure for _, outcome in outcomes))
    return play(names, options.minutes, options.first, options.keep_going)


def play(names: list[str], minutes: float, first: int, keep_going: bool) -> int:
    """Plays seeds of each scenario in turn; returns how many failed."""
    began, failures, virtual = time.monotonic(), 0, 0.0
    seeds: Counter[str] = Counter()
    cost: Counter[str] = Counter()
    for seed in itertools.count(first):
        for name in names:
            started = time.process_time()
            outcome = simulate(name, SCENARIOS[name], seed)
            seeds[name] += 1
            cost[name] += time.process_time() - started  # type: ignore[assignment]
            virtual += outcome.seconds
            if outcome.failure is not None:
                failures += 1
                show(name, seed, outcome)
                if not keep_going:
                    return failures
        if time.monotonic() - began >= minutes * 60:
            break
    for name in names:
        print(f"{name:10} {seeds[name]:6} seeds, {60 * seeds[name] / cost[name]:8.0f} a minute of CPU")
    print(f"{seeds.total()} seeds, {virtual / 3600:.1f} hours of virtual time, {failures} failed")
    return failures


def show(name: str, seed: int, outcome: Outcome) -> None:
    """Prints how a seed ended, and how to replay it."""
    print(f"{name} {seed}: {outcome.steps} steps, {outcome.seconds:.0f} s, digest {outcome.digest}")
    if outcome.failure is not None:
        error = outcome.failure.error
        if not isinstance(error, AssertionError):
            traceback.print_exception(error)
        print(f"FAILED: {type(error).__name__}: {error}")
        print(f"again: python -m tests.simulation --scenario {name} --seed {seed}")


if __name__ == "__main__":
    sys.exit(min(main(), 1))
