"""Whether our statements work behind a pooler, such as PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio

from paceline.errors import PacelineError
from paceline.sql.engine import Database

CLIENTS, ROUNDS = 8, 3
"""Enough that the pooler gives a client another session than the one before."""


async def check_pooler(database: Database) -> PacelineError | None:
    """The error of pipelines that several clients run twice; None if all of them work."""
    # Imported here: the driver is an optional extra.
    from paceline.sql.pipeline import BEGIN, COMMIT, Statement, run_pipeline

    probe = Statement("paceline_pooler_probe", "SELECT pg_sleep(0.01), $1::int")
    calls = [(BEGIN, ()), (probe, ("1",)), (COMMIT, ())]
    try:
        for _ in range(ROUNDS):
            await asyncio.gather(*(database.flush(run_pipeline, calls) for _ in range(CLIENTS)))
    except PacelineError as error:
        return error
    return None
