"""How many requests one transaction carries: as many as fit into a fraction of a second.

Callers of a config wait for the transaction in front of them. Its duration depends on its requests: requests for one
time share a few windows, requests for different times each cost reads and writes. So each kind has its own pace.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.slots.model import SlotRequest

TARGET_SECONDS = 0.25
LEAST = 50
FIRST_SPARSE = 1000


class Pace:
    """The size of the next transaction, learnt from what the last ones took."""

    def __init__(self, first: int, max_size: int) -> None:
        self.size = min(first, max_size)
        self._max_size = max_size

    def learn(self, count: int, seconds: float) -> None:
        """Learns that a transaction of `count` requests took that long. A small, quick one is ignored."""
        if seconds > TARGET_SECONDS:
            self.size = max(min(LEAST, self._max_size), int(count * TARGET_SECONDS / seconds))
        elif count >= self.size:
            self.size = min(
                self._max_size, 2 * self.size, max(self.size, int(count * TARGET_SECONDS / max(seconds, 1e-6)))
            )


class Paces:
    """The pace of crowded and of sparse requests."""

    def __init__(self, max_size: int) -> None:
        self._crowded = Pace(max_size, max_size)
        self._sparse = Pace(FIRST_SPARSE, max_size)

    def next(self, requests: Sequence[SlotRequest], first: int) -> tuple[Sequence[SlotRequest], Pace]:
        """The requests of the next transaction, from the `first` on, and the pace that learns from it."""
        batch = requests[first : first + self._crowded.size]
        if len(batch) > self._sparse.size and 2 * len({requested for _, requested in batch}) > len(batch):
            return batch[: self._sparse.size], self._sparse
        return batch, self._crowded
