"""What lies between a process and a server: messages that are slow, lost, or answered after the caller has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import sqlalchemy as sa

from paceline.errors import StoreUnavailable
from paceline.sql.engine import Database
from paceline.sql.errors import DRIVER_ERRORS, translated
from paceline.sql.hints import Hints
from paceline.sql.url import database_url
from tests.simulation.loop import Process, SimulationLoop

T = TypeVar("T")

USUAL_TRIP = 0.002
LONGEST_TRIP = 8.0
LONGEST_STALL = 15.0


@dataclass
class Faults:
    """How often what goes wrong, of 1. Each seed has its own mixture: some faults hide others."""

    slow: float = 0.0
    lost_request: float = 0.0
    lost_answer: float = 0.0
    stalls: float = 0.0
    """A process freezes between an answer's arrival and its handling."""
    kills: float = 0.0
    """Per second, as are the next three."""
    freezes: float = 0.0
    cuts: float = 0.0
    outages: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> Faults:
        if random.random() < 0.1:
            return cls()

        def some(most: float) -> float:
            return random.random() ** 2 * most if random.random() < 0.5 else 0.0

        return cls(some(0.1), some(0.1), some(0.1), some(0.05), some(0.2), some(0.2), some(0.2), some(0.1))


class Network:
    """Carries calls between processes; `heal` ends its faults."""

    def __init__(self, loop: SimulationLoop, random: Random, faults: Faults) -> None:
        self.loop = loop
        self._random = random
        self.faults = faults
        self._cut_until: dict[tuple[Process, Process], float] = {}
        self._down_until: dict[Process, float] = {}

    def cut(self, process: Process, server: Process, seconds: float) -> None:
        """Loses everything between the two for a while."""
        self._cut_until[process, server] = self.loop.time() + seconds

    def stop(self, server: Process, seconds: float) -> None:
        """The server is down for a while. It may have executed calls that it did not answer."""
        self._down_until[server] = self.loop.time() + seconds

    def heal(self) -> None:
        self.faults = Faults()
        self._cut_until.clear()
        self._down_until.clear()

    def link(self, process: Process, server: Process, deadline: float) -> Link:
        """A connection of the process that runs to a server."""
        return Link(self, process, server, deadline)

    def trip(self) -> float:
        """How long a message is on its way."""
        if self._random.random() < self.faults.slow:
            return self._random.random() ** 3 * LONGEST_TRIP
        return self._random.expovariate(1 / USUAL_TRIP)

    def loses(self, process: Process, server: Process, share: float) -> bool:
        """Whether a message between the two is lost."""
        now = self.loop.time()
        if self._down_until.get(server, 0.0) > now or self._cut_until.get((process, server), 0.0) > now:
            return True
        return self._random.random() < share

    def stall(self, process: Process) -> None:
        """Freezes a process that was just given an answer, now and then."""
        if self._random.random() < self.faults.stalls:
            seconds = self._random.random() ** 2 * LONGEST_STALL
            process.frozen_until = max(process.frozen_until, self.loop.time() + seconds)

    def resets(self) -> bool:
        """Whether a loss is noticed at once; else the caller waits for its timeout."""
        return self._random.random() < 0.5


class Link:
    """Calls from one process to one server. A call that failed may have been done, or may be done later."""

    def __init__(self, network: Network, process: Process, server: Process, deadline: float) -> None:
        self._network = network
        self._process = process
        self._server = server
        self._deadline = deadline

    async def call(self, work: Callable[[], T], failure: Callable[[], Exception] = StoreUnavailable) -> T:
        """What `work` returns, done at the server at one instant.

        Raises:
            StoreUnavailable: no answer came in time.
        """
        network, loop, life = self._network, self._network.loop, self._process.life
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            result, error = None, None
            try:
                result = work()
            except AssertionError:
                raise  # a broken invariant: not an answer
            except Exception as raised:
                error = raised
            if not network.loses(self._process, self._server, network.faults.lost_answer):
                loop.post(self._process, network.trip(), deliver, result, error)
            elif network.resets():
                loop.post(self._process, network.trip(), deliver, None, failure())

        def deliver(result: T, error: Exception | None) -> None:
            limit.cancel()
            if answer.done() or self._process.life != life:
                return  # no caller waits any more: a killed process must not continue after its restart
            network.stall(self._process)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        limit = loop.post(self._process, self._deadline, deliver, None, failure())
        if not network.loses(self._process, self._server, network.faults.lost_request):
            loop.post(self._server, network.trip(), arrive)
        elif network.resets():
            loop.post(self._process, network.trip(), deliver, None, failure())
        return await answer


def finished(work: Any) -> Any:
    """The result of a coroutine that waits for nothing; any other value as it is."""
    if not isinstance(work, Coroutine):
        return work
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError(f"{work} waited")


class Remote:
    """A store, seen over a link: each method of its port is one call. Its attributes are known on this side."""

    def __init__(self, port: type, store: Any, link: Link) -> None:
        self._port = port
        self._store = store
        self._link = link

    def __getattr__(self, name: str) -> Any:
        if any(name in vars(kind).get("__annotations__", {}) for kind in self._port.__mro__):
            return getattr(self._store, name)
        if not hasattr(self._port, name):
            raise AttributeError(name)
        method = getattr(self._store, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await self._link.call(lambda: finished(method(*args, **options)))

        return call

    async def close(self) -> None:
        """The server resumes."""


class SimulatedDatabase(Database):
    """SQLite in memory, over a link: each transaction is one call. Without a link it answers at once."""

    def __init__(self, engine: sa.Engine, link: Link | None = None) -> None:
        self.url = database_url("sqlite://")
        self.dialect = "sqlite"
        self.async_engine = None
        self._engine = engine
        self._autocommit = self._flushing = None
        self._threads = None
        self._deadline = 0.0
        self._holders = 1
        self.hints = Hints(self)
        self._link = link

    async def _run(
        self, engine: sa.Engine, _threads: Any, _deadline: Any, read_only: bool, work: Any, args: Any, kwargs: Any
    ) -> Any:
        def run() -> Any:
            try:
                with engine.connect() as connection, connection.begin():
                    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
                    return work(connection, *args, **kwargs)
            except DRIVER_ERRORS as error:
                raise translated(error) from error

        return run() if self._link is None else await self._link.call(run)

    async def close(self) -> None:
        """The database resumes."""
