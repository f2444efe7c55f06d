"""`paceline`, with a record of when its calls to the bank leave: `python -m tests.faults.departures FILE worker …`.

The bank only sees when calls arrive, which is later by the delay of the network and a busy machine. A departure is
recorded when its first bytes are passed to the system, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import os
import sys
import time
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from paceline.__main__ import main

CALL = b"POST /payments "


def record(file: str) -> None:
    """From now on, each departure is a line of the file, which processes may share."""
    written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write = _SelectorSocketTransport.write

    def noted(transport: Any, data: Any) -> None:
        if bytes(data[: len(CALL)]) == CALL:
            os.write(written, b"%.6f\n" % time.monotonic())
        write(transport, data)

    _SelectorSocketTransport.write = noted


def read(file: Path) -> list[float]:
    """When calls left, in order, by the machine's monotonic clock."""
    return sorted(map(float, file.read_text().split())) if file.exists() else []


if __name__ == "__main__":
    record(sys.argv.pop(1))
    main()
