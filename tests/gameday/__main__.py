"""`python -m tests.gameday`: runs every drill, all sites at once, and prints the results."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from paceline.testing.servers.failures import ServerUnavailable
from tests.gameday.drill import Row, table
from tests.gameday.prometheus import alert_names
from tests.gameday.sites import SITES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gameday", description=__doc__)
    parser.add_argument("--site", choices=list(SITES), action="append", help="of these; all, if not given")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        rows = asyncio.run(play(options.site or list(SITES)))
    except ServerUnavailable as unavailable:
        sys.exit(str(unavailable))
    print(table(rows))
    failed = [row for row in rows if not row.good]
    missing = set(alert_names()) - {row.alert for row in rows} if options.site is None else set()
    print(f"{len(rows)} drills of {len({row.alert for row in rows})} alerts in {time.monotonic() - began:.0f} s")
    for name in sorted(missing):
        print(f"{name}: no drill was played")
    return int(bool(failed or missing))


async def play(names: list[str]) -> list[Row]:
    """Plays the drills of these sites at once."""
    played = await asyncio.gather(*map(_play_site, names))
    return [row for rows in played for row in rows]


async def _play_site(name: str) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix=f"paceline-gameday-{name}-") as folder:
        async with SITES[name](Path(folder)) as day:
            return await day.play()


if __name__ == "__main__":
    sys.exit(main())
