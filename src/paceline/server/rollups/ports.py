"""The port of rollups: a store that all processes share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from paceline.server.rollups.model import Counts, Period


class RollupStore(Protocol):
    """Keeps rollups. Time is the store's own clock."""

    async def now(self) -> datetime:
        """The store's clock."""
        ...

    async def write(self, process: str, periods: Mapping[Period, Counts]) -> None:
        """Makes these the process's counts in these periods. Idempotent: a call whose response was lost may be retried.

        Raises:
            StoreUnavailable: no answer; it may then have been written or not.
        """
        ...

    async def add(self, periods: Mapping[Period, Counts]) -> None:
        """Adds the counts of a process that ends and never wrote to a shared row: commands must not leave one row each.
        Not idempotent.

        Raises:
            Conflict: another process did so concurrently; nothing was added; retry.
            StoreUnavailable: no answer; it may then have been added or not.
        """
        ...

    async def read(self, step: int, since: datetime) -> dict[Period, Counts]:
        """The counts of all processes in the periods of that length that begin at `since` or later.

        Raises:
            StoreUnavailable: no answer.
        """
        ...

    async def minutes(self, label: str, since: datetime) -> dict[Period, Counts]:
        """The minutes of the flow of that label that begin at `since` or later.

        Raises:
            StoreUnavailable: no answer.
        """
        ...

    async def prune(self, now: datetime) -> int:
        """Deletes periods past their retention; returns the number of rows."""
        ...
