"""How many requests one transaction carries: as many as fit into a fraction of a second.

Callers of a config wait for the transaction in front of them. Its duration depends on its requests: requests for one
time share a few windows, requests for different times each cost reads and writes. So each kind has its own pace.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.slots.model import BookingGroup

TARGET_SECONDS = 0.25
Position = tuple[int, int]
"""A group, and the number of its requests that are done."""
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

    @property
    def size(self) -> int:
        """The most requests that one transaction should have, whatever they are."""
        return min(self._crowded.size, self._sparse.size)

    def next(
        self, groups: Sequence[BookingGroup], at: Position, max_configs: int
    ) -> tuple[list[BookingGroup], Position]:
        """The groups of the next transaction, from a position on, the last one maybe in part; and where to continue."""
        portion = _portion(groups, at, self._crowded.size, max_configs)
        if sum(len(group.requests) for group in portion) > self._sparse.size and _are_sparse(portion):
            portion = _portion(groups, at, self._sparse.size, max_configs)
        last = at[0] + len(portion) - 1
        done = len(portion[-1].requests) + (at[1] if len(portion) == 1 else 0)
        return portion, (last, done) if done < len(groups[last].requests) else (last + 1, 0)

    def learn(self, groups: Sequence[BookingGroup], seconds: float) -> None:
        """Learns that a transaction of these groups took that long."""
        pace = self._sparse if _are_sparse(groups) else self._crowded
        pace.learn(sum(len(group.requests) for group in groups), seconds)


def _portion(groups: Sequence[BookingGroup], at: Position, size: int, max_configs: int) -> list[BookingGroup]:
    """Up to `size` requests from a position on, under up to `max_configs` configs; at least one group."""
    portion: list[BookingGroup] = []
    names: set[str] = set()
    first = at[1]
    for group in groups[at[0] :]:
        names.update(group.names)
        if size <= 0 or (portion and len(names) > max_configs):
            break
        requests = group.requests[first : first + size] if first or len(group.requests) > size else group.requests
        portion.append(group._replace(requests=requests))
        size -= len(requests)
        first = 0
    return portion


def _are_sparse(groups: Sequence[BookingGroup]) -> bool:
    """Whether most requests are for different times, or under different configs."""
    total = sum(len(group.requests) for group in groups)
    return 2 * sum(len({requested for _, requested in group.requests}) for group in groups) > total
