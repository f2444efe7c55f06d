"""Deciding in the store: lock the user's row, decide, publish, count what was acknowledged, commit.

Concurrent calls of one process share transactions (`headgate.batching`): however many callers wait for one user's row,
they hold one connection, and their messages go to the log together.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.apps.notifications.model import Attempt, Verdict
from headgate.apps.notifications.ports import QuotaStore
from headgate.batching import Batcher
from headgate.errors import HeadgateError
from headgate.messaging import MessageLog

BATCH = 500


class SqlQuota:
    """Decides in the store alone."""

    def __init__(self, store: QuotaStore, log: MessageLog) -> None:
        self._store = store
        self._log = log
        self._writer: Batcher[Attempt, Verdict] = Batcher(self._flush, max_batch=BATCH)

    async def send(self, attempt: Attempt) -> Verdict:
        """Decided, and published if allowed. `NotFound` for an unknown user; `BrokerUnavailable` if the log did not
        acknowledge, and then nothing is counted."""
        return await self._writer.submit(attempt)

    async def close(self) -> None:
        await self._writer.close()

    async def _flush(self, attempts: Sequence[Attempt]) -> Sequence[Verdict | HeadgateError]:
        return await self._store.admit(attempts, self._log)
