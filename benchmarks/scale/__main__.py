"""`make scale`: simulates a hundred million a day with the stored service times, for the page on scale.

`make bench BENCH=scale` measures the service times again, and compares the simulation with a real run.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import pages, results
from benchmarks.scale import answers, pictures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.parse_args()
    if "scale" not in results.load():
        parser.error("no service times in benchmarks/results/scale.json; measure them: make bench BENCH=scale")
    print(f"wrote {', '.join([*write(), *pages.render()])}")
    return 0


def write() -> list[str]:
    """Simulates, and draws the pictures; the names of the files."""
    simulated = answers.answers(answers.Inputs.of(results.load()))
    answers.store(simulated)
    return [answers.STORED.name, *(path.name for path in pictures.draw(simulated))]


if __name__ == "__main__":
    sys.exit(main())
