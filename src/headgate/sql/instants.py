"""Many times to and from text, quickly: for bulk reads and writes, where converting each one by itself costs more than
storing it."""

from __future__ import annotations

from datetime import UTC, datetime

from headgate.durations import from_ms, to_ms


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


class InstantMs:
    """`2027-03-01 16:00:02.371000`, as SQLite holds it, as epoch milliseconds; the inverse of `InstantText`."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        second = text[:19]
        ms = self._seconds.get(second)
        if ms is None:
            ms = self._seconds[second] = to_ms(datetime.fromisoformat(second).replace(tzinfo=UTC))
        return ms + int(text[20:23])
