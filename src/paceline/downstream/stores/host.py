"""Permits and states of all processes of one user on a host: a small file each, replaced under a lock.

The kernel frees the lock of a process that was killed; a file is written beside its place and renamed, so it is never
half written. The files lie in memory, where there is `/dev/shm`: they end with the host, as its processes do.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from paceline.downstream import permits
from paceline.downstream.permits import Grant, PermitPolicy, Permits
from paceline.downstream.state import Reading, State
from paceline.errors import ConfigurationError, StoreError, StoreUnavailable

R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
LIFE = "-"
"""Of the store: a host's files end with it."""
PAUSE_SECONDS = 0.001
TIMEOUT = 3.0
"""Seconds for the lock: it is held for less than a millisecond, unless its process is stopped in between."""


class HostFile:
    """The text of one file, which processes change in turn."""

    def __init__(self, url: str, name: str, kind: str) -> None:
        host = urlsplit(url).netloc
        if _NAME.fullmatch(host) is None:
            raise ConfigurationError("url", "host:// needs a name of up to 64 letters, digits, '.', '-' and '_'")
        folder = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp")  # noqa: PTH112
        digest = sha256(name.encode()).hexdigest()[:32]
        self._path = folder / f"paceline-{os.geteuid()}-{host}-downstream-{digest}-{kind}"

    async def change(self, decide: Callable[[str | None], tuple[str | None, R]]) -> R:
        """Replaces the text by what `decide` makes of it; None leaves it. Raises `StoreUnavailable`."""
        try:
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await self._locked(lock)
                text, result = decide(self._path.read_text() if self._path.exists() else None)
                if text is not None:
                    beside = self._path.with_suffix(".new")
                    beside.write_text(text)
                    beside.replace(self._path)
                return result
            finally:
                os.close(lock)
        except OSError as error:
            raise StoreError(f"{self._path} can't be used: {error.strerror}") from error

    async def _locked(self, lock: int) -> None:
        ends = time.monotonic() + TIMEOUT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise StoreUnavailable(f"another process has locked {self._path}; is it stopped?") from None
                await asyncio.sleep(PAUSE_SECONDS)


class HostPermitStore:
    """The `PermitStore` port for the processes of a host."""

    def __init__(self, url: str, name: str, policy: PermitPolicy) -> None:
        self.policy = policy
        self._file = HostFile(url, name, "permits")

    async def take(self, holder: str, hold: float) -> Grant:
        def decide(text: str | None) -> tuple[str, Grant]:
            state, grant = permits.take(_read(text), self.policy, holder, round(hold * 1e6), time.time_ns() // 1000)
            return state.to_text(), grant

        return await self._file.change(decide)

    async def free(self, holder: str, at_us: int) -> None:
        await self._file.change(lambda text: (permits.free(_read(text), holder, at_us).to_text(), None))

    async def close(self) -> None:
        """It has no connections."""


class HostStateStore:
    """The `StateStore` port for the processes of a host."""

    def __init__(self, url: str, name: str) -> None:
        self._file = HostFile(url, name, "state")

    async def read(self) -> Reading:
        return await self._file.change(lambda text: (None, Reading(State.of_text(text), time.time_ns() // 1000)))

    async def change(self, decide: Callable[[State, int], State]) -> Reading:
        def changed(text: str | None) -> tuple[str | None, Reading]:
            before, now_us = State.of_text(text), time.time_ns() // 1000
            after = decide(before, now_us)
            return None if after is before else after.to_text(), Reading(after, now_us)

        return await self._file.change(changed)

    async def close(self) -> None:
        """It has no connections."""


def _read(text: str | None) -> Permits:
    # Without the file, the host has started since: no call of it can arrive.
    return Permits({}, life=LIFE) if text is None else Permits.of_text(text)
