"""Many times as text, quickly: for bulk writes, where converting each one by itself costs more than storing it."""

from __future__ import annotations

from headgate.durations import from_ms


class InstantText:
    """Epoch milliseconds as `2027-03-01 16:00:02.371`; remembers the second, which bulk times mostly share."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[int, str] = {}

    def __call__(self, ms: int) -> str:
        second, rest = divmod(ms, 1000)
        text = self._seconds.get(second)
        if text is None:
            text = self._seconds[second] = from_ms(second * 1000).strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{rest:03d}"
