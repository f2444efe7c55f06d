"""Names the tests that failed, were tried again alone and passed: `python -m tests.flaky before after`.

Both are pytest's records of what failed last (`.pytest_cache/v/cache/lastfailed`), from before and after the new try.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

KNOWN = Path(__file__).with_name("known_flaky.toml")


def causes(file: Path = KNOWN) -> dict[str, str]:
    """Each known flaky test and why it is."""
    return {entry["test"]: entry["cause"] for entry in tomllib.loads(file.read_text("utf-8")).get("flaky", [])}


def failed(record: Path) -> set[str]:
    """What a record names; there is none when nothing failed."""
    return set(json.loads(record.read_text("utf-8"))) if record.exists() else set()


def report(passed: set[str], known: dict[str, str]) -> list[str]:
    """Lines for the output of the check."""
    lines = []
    for test in sorted(passed):
        cause = known.get(test) or known.get(test.partition("[")[0])
        if cause:
            lines.append(f"known to be flaky: {test}: {cause}")
        else:
            lines += [
                f"*** FLAKY, AND NOT KNOWN TO BE: {test}",
                "*** It failed, and passed when it was tried again alone. Find the cause and remove it; until then add",
                f"*** the test with its cause to {KNOWN.parent.name}/{KNOWN.name}.",
            ]
    return lines


if __name__ == "__main__":
    before, after = (failed(Path(word)) for word in sys.argv[1:])
    sys.stdout.writelines(f"{line}\n" for line in report(before - after, causes()))
