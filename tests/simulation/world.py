"""One run: processes, servers, a network between them, and chaos, all drawn from a seed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from tests.simulation.loop import Process, SimulationLoop
from tests.simulation.network import Faults, Link, Network
from tests.simulation.virtual_time import WALL, virtual_time

LONGEST_FREEZE = 30.0
LONGEST_CUT = 20.0
LONGEST_DEATH = 20.0


class Violation(AssertionError):
    """An invariant that does not hold."""


class Failure(NamedTuple):
    """A seed that failed, and how."""

    scenario: str
    seed: int
    error: BaseException


class World:
    """The environment of a scenario."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = Random(f"{name} {seed}")
        """For the scenario's own choices, and everything else: one source, so that a seed is a whole run."""
        self.loop = SimulationLoop(self.random)  # type: ignore[abstract]  # the rest of a loop is for sockets
        self.faults = Faults.drawn(self.random)
        self.network = Network(self.loop, self.random, self.faults)
        self._mains: dict[Process, Callable[[Process], Coroutine[Any, Any, None]]] = {}
        self._servers: list[Process] = []
        self._chaos: asyncio.Task[None] | None = None
        self._dead: set[Process] = set()
        self.history: list[str] = []
        """The events of the run, for reading a failure."""
        self.deaths = 0

    # -- time ----------------------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """The wall clock of servers; a `Clock`, with the next."""
        return round((WALL + self.loop.time()) * 1e6)

    def monotonic_us(self) -> int:
        return round(self.loop.time() * 1e6)

    def note(self, text: str) -> None:
        self.history.append(f"{self.loop.time() - 1000:10.4f} {self.loop.current!r:14} {text}")

    def violated(self, problem: str) -> None:
        """Ends the run, also from inside code that catches exceptions."""
        self.note(problem)
        self.loop.fail(Violation(problem))

    # -- who there is --------------------------------------------------------------------------------------------------

    def server(self, name: str) -> Process:
        """A server: it does not die, but can be away."""
        server = self.loop.add(name)
        server.skew = 0.0
        self._servers.append(server)
        return server

    def process(self, name: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        """A process that runs `main`, again whenever it was killed."""
        process = self.loop.add(name)
        self._mains[process] = main
        self._start(process)
        return process

    def link(self, process: Process, server: Process, deadline: float = 5.0) -> Link:
        return self.network.link(process, server, deadline)

    def _start(self, process: Process) -> None:
        self._dead.discard(process)
        self.note(f"starts {process!r}")
        task = self.loop.start(process, self._mains[process](process))
        task.add_done_callback(_raise_failure)

    # -- chaos ---------------------------------------------------------------------------------------------------------

    async def endure(self, seconds: float) -> None:
        """Lets things happen, and go wrong, for so long."""
        loop, random, faults, end = self.loop, self.random, self.faults, self.loop.time() + seconds
        rates = [faults.kills, faults.freezes, faults.cuts, faults.outages]
        while True:
            total = sum(rates)
            pause = random.expovariate(total) if total else seconds
            if loop.time() + pause >= end:
                await asyncio.sleep(max(0.0, end - loop.time()))
                return
            await asyncio.sleep(pause)
            (act,) = random.choices([self._kill, self._freeze, self._cut, self._stop], rates)
            act()

    def heal(self) -> None:
        """From now on there are no faults, and all processes run."""
        self.note("heals")
        self.network.heal()
        for process in self._mains:
            process.frozen_until = 0.0
            if process in self._dead:
                self._start(process)

    def _kill(self) -> None:
        process = self.random.choice(list(self._mains))
        if process in self._dead:
            return
        self.note(f"kills {process!r}")
        self.loop.kill(process)
        self._dead.add(process)
        self.deaths += 1
        life = process.life
        self.loop.post(self.loop.observer, self.random.random() * LONGEST_DEATH, lambda: self._revive(process, life))

    def _revive(self, process: Process, life: int) -> None:
        if process in self._dead and process.life == life:
            self._start(process)

    def _freeze(self) -> None:
        process, seconds = self.random.choice(list(self._mains)), self.random.random() ** 2 * LONGEST_FREEZE
        self.note(f"freezes {process!r} for {seconds:.3f} s")
        process.frozen_until = max(process.frozen_until, self.loop.time() + seconds)

    def _cut(self) -> None:
        process, server = self.random.choice(list(self._mains)), self.random.choice(self._servers)
        seconds = self.random.random() ** 2 * LONGEST_CUT
        self.note(f"cuts {process!r} from {server.name} for {seconds:.3f} s")
        self.network.cut(process, server, seconds)

    def _stop(self) -> None:
        server, seconds = self.random.choice(self._servers), self.random.random() ** 2 * LONGEST_CUT
        self.note(f"stops {server.name} for {seconds:.3f} s")
        self.network.stop(server, seconds)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def until(self, is_done: Callable[[], bool], seconds: float, what: str) -> None:
        """Returns when it is done; a violation if that takes longer."""
        end = self.loop.time() + seconds
        while not is_done():
            if self.loop.time() > end:
                raise Violation(f"{what}, {seconds:g} s after all faults were over")
            await asyncio.sleep(0.5)


Scenario = Callable[[World], Awaitable[None]]


class Outcome(NamedTuple):
    """What a run did."""

    digest: str
    """Equal for equal runs."""
    steps: int
    seconds: float
    """Of virtual time."""
    history: list[str]
    failure: Failure | None


def simulate(name: str, scenario: Scenario, seed: int) -> Outcome:
    """Runs one seed of a scenario."""
    world = World(name, seed)
    failure = None
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with virtual_time(world.loop, world.random):
            try:
                world.loop.run(_play(scenario, world))
            except Exception as error:
                failure = Failure(name, seed, error)
    finally:
        logging.disable(disabled)
    state = repr((world.random.getstate(), world.loop.steps, world.loop.time()))
    digest = hashlib.sha256(state.encode()).hexdigest()[:16]
    return Outcome(digest, world.loop.steps, world.loop.time() - 1000.0, world.history, failure)


async def _play(scenario: Scenario, world: World) -> None:
    await scenario(world)


def _raise_failure(task: asyncio.Task[None]) -> None:
    """A process whose main function raises has crashed; the simulation ends with its error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
