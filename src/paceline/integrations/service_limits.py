"""The pauses that servers ask for, as one process remembers them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from paceline.downstream.signals.standard import pause_of
from paceline.locks import Lock

MAX_ORIGINS = 1024


class Pauses:
    """The end of the pause of calls per key. Thread-safe, for a bounded number of keys.

    A pause is never longer than `longest` seconds: a server's mistake must not stop its clients for a year.
    """

    def __init__(self, longest: float, monotonic: Callable[[], float]) -> None:
        self._longest = longest
        self._monotonic = monotonic
        self._until: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    def record_response(self, key: str, status: int, header: Callable[[str], str | None]) -> None:
        """Records the pause that a response requests."""
        if wait := pause_of(status, header):
            until = self._monotonic() + min(wait, self._longest)
            with self._lock:
                self._until[key] = max(until, self._until.pop(key, 0.0))
                if len(self._until) > MAX_ORIGINS:
                    self._until.popitem(last=False)

    def remaining(self, key: str) -> float:
        """Seconds until `key` may be called again; 0 if it may be called now."""
        until = self._until.get(key)
        if until is None:
            return 0.0
        left = until - self._monotonic()
        if left > 0:
            return left
        with self._lock:
            if self._until.get(key) == until:
                del self._until[key]
        return 0.0
