"""Counted windows whose slots lie at known times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.slots.occupancy import CountedWindows, WindowCount


def held_times(taken: Mapping[int, int], size_ms: int) -> list[int]:
    """The times of so many slots in each window, evenly from its start on."""
    return sorted(start + number * size_ms // count for start, count in taken.items() for number in range(count))


class HeldWindows(CountedWindows):
    """A `WindowReader` over windows whose slots are spread evenly."""

    def __init__(self, windows: Sequence[WindowCount], size_ms: int) -> None:
        super().__init__(windows)
        self._times = held_times({window.start_ms: window.taken for window in windows}, size_ms)

    def times(self, from_ms: int, until_ms: int, limit: int) -> list[int]:
        return [at for at in self._times if from_ms <= at < until_ms][:limit]
