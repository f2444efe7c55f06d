"""Where a downstream is shared, and what befalls its callers and its store.

Which test shows that an outside recorder sees no more calls in any second than the rate:

| callers | SQLite | `host://` | PostgreSQL | Redis |
|---|---|---|---|---|
| blocks and httpx2, `async` and `def` | D: kill, freeze | D: kill, freeze | D: kill, freeze, restart | D: all four |
| `async with` in four processes | D: kill | D: kill | D: freeze, restart | D: kill, forget |
| a task, `async def` and `def` | T: kill, freeze | T: kill, freeze | T: kill, freeze, restart | T: all four |
| payments | P: kill, freeze | | P: kill, freeze, restart | P: kill, freeze, restart; L: forget |
| an SMS provider | S: kill, freeze | | S: kill, freeze, restart | |

D is `test_downstream_limit`, T `test_task_calls`, P `test_payments_matrix`, L `test_payments_limit`, S
`test_sms_limit`. The service has no `host://`, and the rates of SMS providers lie in the database of the messages;
they count departures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LONGER_THAN_A_WINDOW = 1.5


class Site(NamedTuple):
    """A store, and the processes that share it."""

    url: str
    server: Any
    """None if it has none of the test's own."""
    processes: Sequence[subprocess.Popen[Any]] = ()


Fault = Callable[[Site], None]


def nothing(_: Site) -> None:
    """No fault."""


def kill(site: Site) -> None:
    site.processes[0].kill()


def freeze(site: Site) -> None:
    """What it held is free by then, or not, but never used twice."""
    os.kill(site.processes[1].pid, signal.SIGSTOP)
    time.sleep(LONGER_THAN_A_WINDOW)
    os.kill(site.processes[1].pid, signal.SIGCONT)


def forget(site: Site) -> None:
    with site.server.client() as client:
        client.flushall()


def restart(site: Site) -> None:
    site.server.kill()
    site.server.start()


def site_of(store: str, fault: Fault, request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A store of the test's own, if the fault is its."""
    if store == "sqlite":
        return Site(f"sqlite:///{tmp_path / 'work.db'}", None)
    if store == "host":
        return Site(request.getfixturevalue("host_url"), None)
    if store == "postgresql" and fault is not restart:
        return Site(str(request.getfixturevalue("postgres_url")), None)
    server = request.getfixturevalue("own_postgres" if store == "postgresql" else "own_redis")
    return Site(server.url, server)


def named(value: Any) -> str | None:
    """The name of a case."""
    return getattr(value, "__name__", None)
