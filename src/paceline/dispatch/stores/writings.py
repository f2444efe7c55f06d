"""What executions write in the transaction that completes their items: once for all that write in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.dispatch.model import Change, WritingRefused
from paceline.dispatch.task_errors import describe


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
