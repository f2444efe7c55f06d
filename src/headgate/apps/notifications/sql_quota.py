"""Deciding in the store: lock the user's row, decide, count, append to the outbox, commit.

Concurrent calls of one process share transactions (`headgate.batching`): however many callers wait for one user's row,
they hold one connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.apps.notifications.model import Attempt, Verdict
from headgate.apps.notifications.ports import QuotaStore
from headgate.batching import Batcher
from headgate.errors import HeadgateError

BATCH = 500


class SqlQuota:
    """Decides in the store alone."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._writer: Batcher[Attempt, Verdict] = Batcher(self._flush, max_batch=BATCH)

    async def send(self, attempt: Attempt) -> Verdict:
        """Decided, and accepted if allowed.

        Raises:
            NotFound: The user has no quota.
            KeyReused: The idempotency key was used for another message.
        """
        return await self._writer.submit(attempt)

    async def close(self) -> None:
        await self._writer.close()

    async def _flush(self, attempts: Sequence[Attempt]) -> Sequence[Verdict | HeadgateError]:
        return await self._store.admit(attempts)
