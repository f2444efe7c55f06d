"""Hints that a table may have news: within this process always, from other processes by PostgreSQL's LISTEN/NOTIFY, or
by the data version of an SQLite file.

A hint may be lost or spurious. Correctness rests on polling; hints only reduce the latency, so that polling may be
slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import sqlalchemy as sa

from paceline.errors import StoreError, StoreUnavailable
from paceline.locks import Lock

if TYPE_CHECKING:
    from paceline.sql.engine import Database
    from paceline.sql.listening import Listening

log = logging.getLogger(__name__)

CHANNEL = "paceline_dispatch"
"""Every version listens to it, so it keeps its name."""
QUIET_SECONDS = 0.02
"""The shortest time between two notifications of one name: every NOTIFY serialises its commit with all others."""
LONGEST_PAUSE = 30.0
ECHO_SECONDS = 30.0
"""How often a notification to ourselves checks that LISTEN still works."""
WATCH_SECONDS = 0.1
"""How often the data version of an SQLite file is read. It takes no transaction, and some microseconds."""
UNREAD_SECONDS = 10.0
"""How often pollers read what has not changed."""
PROBE_SECONDS = 1.0
"""How often PostgreSQL is asked for changes that no notification announced: those made by hand."""


class Hints:
    """Notifies subscribers by name, in this process and in others. One per `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscribers: dict[str, WeakSet[asyncio.Event]] = defaultdict(WeakSet)
        self._commit_subscribers: WeakSet[asyncio.Event] = WeakSet()
        self._probes: dict[str, str] = {}
        """Queries by name."""
        self._probed: dict[str, object] = {}
        """Their last values."""
        self._echo: str | None = None
        """Our own notification, until it comes back."""
        self._notified: dict[str, float] = {}
        self._delayed: dict[str, asyncio.Task[None]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._is_listening = False

    @property
    def are_received(self) -> bool:
        """Whether hints from other processes reach this one. Never on Oracle, nor behind a transaction pooler of
        PostgreSQL."""
        return self._is_listening

    def subscribe(self, name: str, *, any_commit: bool = False, probe: str | None = None) -> asyncio.Event:
        """An event that is set by notifications of `name`, for as long as the caller keeps it. With `any_commit`, every
        commit of another process to an SQLite file sets it, also of one that sends no notifications. With `probe`, a
        query for one value, it is set once that value has changed: within `PROBE_SECONDS` on PostgreSQL, and within
        `WATCH_SECONDS` in an SQLite file."""
        event = asyncio.Event()
        if probe is not None:
            self._probes[name] = probe
        self._subscribers[name].add(event)
        if any_commit:
            self._commit_subscribers.add(event)
        return event

    def due(self, names: Iterable[str]) -> list[str]:
        """The names of which other processes were not notified just now. They count as notified from now on."""
        now = time.monotonic()
        due = sorted(name for name in set(names) if now - self._notified.get(name, -1.0) >= QUIET_SECONDS)
        for name in due:
            self._notified[name] = now
        return due

    def notify_later(self, names: Iterable[str]) -> None:
        """Notifies other processes after `QUIET_SECONDS` of names that were not due, whose changes are committed."""
        for name in names:
            if name not in self._delayed:
                self._delayed[name] = asyncio.create_task(self._notify_soon(name))

    async def _notify_soon(self, name: str) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        del self._delayed[name]
        with contextlib.suppress(StoreError):
            for due in self.due([name]):
                await self._database.once(notify, due)

    def wake(self, names: Iterable[str]) -> None:
        """Sets the events of subscribers in this process."""
        for name in names:
            for event in self._subscribers.get(name, ()):
                event.set()

    def notify(self, names: Iterable[str]) -> None:
        """Notifies of committed changes: this process at once, others soon."""
        names = list(names)
        self.wake(names)
        if self._database.dialect == "postgresql":
            self.notify_later(names)

    async def wait_for_any(self, events: Mapping[str, asyncio.Event], timeout: float) -> None:
        """Waits until one of these events of subscribers is set, by their names; up to `timeout` seconds."""
        if any(event.is_set() for event in events.values()):
            return
        any_of_them = asyncio.Event()
        for name in events:
            self._subscribers[name].add(any_of_them)
        await self.wait(any_of_them, timeout)

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        """Waits for the event, up to `timeout` seconds; returns whether it was set, and clears it."""
        if self._listener is None and self._database.dialect in ("postgresql", "sqlite"):
            listen = self._listen if self._database.dialect == "postgresql" else self._watch_commits
            self._listener = asyncio.create_task(listen())
        if timeout > 0 and not event.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
        was_set = event.is_set()
        event.clear()
        return was_set

    async def close(self) -> None:
        await asyncio.gather(*self._delayed.values(), return_exceptions=True)
        if self._listener is not None:
            listener, self._listener = self._listener, None
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self) -> None:
        # Imported here: the driver is an optional extra.
        import psycopg

        from paceline.sql.listening import Listening

        url = self._database.listen_url.set(drivername="postgresql").render_as_string(hide_password=False)
        pause = 1.0
        while True:
            try:
                listening = await Listening.open(url, CHANNEL, self._hear)
                try:
                    pause = 1.0
                    # Notifications before LISTEN were missed: look once.
                    self.wake(list(self._subscribers))
                    while await self._receive_echo(listening) or not self._is_listening:
                        pass
                finally:
                    await listening.close()
                log.info("listening for hints again: the server does not answer any more")
            except (psycopg.Error, StoreError) as error:
                log.info("listening for hints again in %.0f s: %s", pause, str(error).partition("\n")[0])
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            finally:
                self._stop_listening()

    def _stop_listening(self) -> None:
        """Notes that hints of other processes do not arrive. Subscribers that waited for them must poll now."""
        if self._is_listening:
            self._is_listening = False
            self.wake(list(self._subscribers))

    def _hear(self, name: str) -> None:
        if name == self._echo:
            self._echo, self._is_listening = None, True
        self.wake([name])

    async def _receive_echo(self, listening: Listening) -> bool:
        """Listens for a while, and returns whether our own notification came back. If not, the server hangs, its host
        is gone, or another server is the primary now."""
        self._echo = echo = f"echo:{uuid.uuid4().hex}"
        await self._database.once(notify, echo)
        for _ in range(max(1, round(ECHO_SECONDS / PROBE_SECONDS))):
            await self._probe(listening)
            await listening.listen(PROBE_SECONDS)
        if listening.is_waiting:
            raise StoreUnavailable("the server does not answer")
        return self._echo is None

    async def _probe(self, listening: Listening) -> None:
        """Wakes the subscribers of changed values. Without an answer, notifications may be lost too."""
        names = [name for name in self._probes if self._subscribers.get(name)]
        values = await listening.ask([self._probes[name] for name in names], PROBE_SECONDS)
        if values is None:
            self._stop_listening()
            return
        if self._echo is None:
            self._is_listening = True
        self._compare(names, values)

    def _compare(self, names: Sequence[str], values: Sequence[object]) -> None:
        """Wakes the subscribers of those values that are others than before."""
        unknown = object()
        changed = {
            name: value for name, value in zip(names, values, strict=False) if self._probed.get(name, unknown) != value
        }
        self._probed |= changed
        self.wake(changed)

    async def _watch_commits(self) -> None:
        """Sets events after commits to an SQLite file, of any process."""
        while (opened := await self._database.watch_connection()) is not None:
            try:
                with contextlib.closing(_CommitWatch(opened)) as watch, contextlib.suppress(sqlite3.Error):
                    await self._wake_after_commits(watch)
            finally:
                self._stop_listening()
            await asyncio.sleep(1.0)
        self._is_listening = True  # a database in memory is used by this process only

    async def _wake_after_commits(self, watch: _CommitWatch) -> None:
        others = None
        while True:
            # Most commits are this process's own, which notify by name.
            if (latest := await self._database.commits_of_others()) != others:
                others = latest
                for event in self._commit_subscribers:
                    event.set()
                self._probe_file(watch)
            self._is_listening = True
            await watch.wait()

    def _probe_file(self, watch: _CommitWatch) -> None:
        """Wakes the subscribers of changed values: most commits of others change none of them."""
        names = [name for name in self._probes if self._subscribers.get(name)]
        if not names:
            return
        columns = ", ".join(f"({self._probes[name]})" for name in names)
        try:
            [values] = watch.read(f"SELECT {columns}")
        except sqlite3.OperationalError:
            self.wake(names)  # a table that is not made yet
        else:
            self._compare(names, values)


class _CommitWatch:
    """Reads the data version of an SQLite file, on a thread that sleeps in between: a timer of the event loop takes
    nearly twice the CPU time, ten times per second."""

    def __init__(self, opened: sqlite3.Connection) -> None:
        self._opened = opened
        self._lock = Lock()
        """Held while the connection is used, or closed."""
        self._is_closed = False
        self._error: sqlite3.Error | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        threading.Thread(target=self._look_on, name="paceline-sqlite-watch", daemon=True).start()

    async def wait(self) -> None:
        """Returns after a commit of any connection.

        Raises:
            sqlite3.Error: the version can't be read.
        """
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    def read(self, query: str) -> list[Any]:
        with self._lock:
            return self._opened.execute(query).fetchall()

    def close(self) -> None:
        """Closes the connection. The thread ends when it wakes up."""
        with self._lock:
            self._is_closed = True
            self._opened.close()

    def _look_on(self) -> None:
        version = -1
        while not self._loop.is_closed():
            with self._lock:
                if self._is_closed:
                    return
                try:
                    [(latest,)] = self._opened.execute("PRAGMA data_version").fetchall()
                except sqlite3.Error as error:
                    self._error, latest = error, -1
            if latest != version or self._error is not None:
                version = latest
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(self._changed.set)
            if self._error is not None:
                return
            time.sleep(WATCH_SECONDS)
        self.close()


class ChangeWatch:
    """Tells a poller whether something may have changed since it was read."""

    def __init__(self, hints: Hints, name: str, probe: str) -> None:
        self._hints = hints
        self._changed = hints.subscribe(name, probe=probe)
        self._read_at = float("-inf")

    def may_have_changed(self) -> bool:
        """Also, in case a hint was lost, if it was not read for ten seconds; and always where hints of other processes
        are not received."""
        silence = asyncio.get_running_loop().time() - self._read_at
        return self._changed.is_set() or not self._hints.are_received or silence >= UNREAD_SECONDS

    def note_read(self) -> None:
        """To be called before it is read: later changes are new."""
        self._changed.clear()
        self._read_at = asyncio.get_running_loop().time()

    async def wait(self, timeout: float, *, every: float) -> None:
        """Returns after `timeout` seconds; or, if it may have changed, no more than `every` seconds after that. Then it
        counts as read."""
        await self.changed(timeout, every=every)
        self.note_read()

    async def changed(self, timeout: float, *, every: float) -> None:
        """Returns after `timeout` seconds; or, if it may have changed, no more than `every` seconds after that, and no
        earlier than `every` seconds after the call."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        await asyncio.sleep(min(timeout, every))
        while (left := deadline - now()) > 0 and not self.may_have_changed():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._read_at + UNREAD_SECONDS - now())):
                    await self._changed.wait()


def notify(connection: sa.Connection, name: str) -> None:
    """Notifies every process that listens."""
    connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, name))
