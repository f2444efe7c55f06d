"""What executions write in the transaction that completes their items: once for all that write in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from paceline.dispatch.model import BatchSummary, Change, WritingRefused
from paceline.dispatch.task_errors import describe

Settle = Callable[[sa.Connection, Sequence[Change], Sequence[BatchSummary], datetime | None], list[bool]]


def with_writings(write: Settle) -> Settle:
    """`write`, and what the executions of its changes write."""

    def settle(
        connection: sa.Connection, changes: Sequence[Change], summaries: Sequence[BatchSummary], now: datetime | None
    ) -> list[bool]:
        done = write(connection, changes, summaries, now)
        write_together(connection, changes, done)
        return done

    return settle


def write_together(within: Any, changes: Sequence[Change], done: Sequence[bool]) -> None:
    """Writes the records of the changes that were made, and of others that are written even so.

    Raises:
        WritingRefused: one of them can't be written.
    """
    records: dict[Callable[[Any, Sequence[Any]], object], list[Any]] = {}
    for change, is_done in zip(changes, done, strict=True):
        for writing in change.writings:
            if is_done or writing.even_if_lost:
                records.setdefault(writing.write, []).append(writing.record)
    for each, some in records.items():
        try:
            each(within, some)
        except Exception as error:  # a user's function may raise any
            raise WritingRefused(describe(error)) from error
