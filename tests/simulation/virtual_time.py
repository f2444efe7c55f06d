"""The clocks and the random numbers of the standard library, as the simulation has them."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.loop import SimulationLoop

WALL = 1_803_902_400.0
"""2027-03-01T16:00:00Z, when every simulation begins."""


@contextmanager
def virtual_time(loop: SimulationLoop, source: random.Random) -> Iterator[None]:
    """While the block runs, this thread reads the clocks of the simulated process, and all randomness comes from
    `source`. Other threads are not affected."""
    here = threading.get_ident()

    def monotonic() -> float:
        return loop.time() + loop.current.boot

    def wall() -> float:
        return WALL + loop.time() + loop.current.skew

    class SeededRandom(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(source.getrandbits(64) if x is None else x)

    def only_here(instead: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: instead(*args) if threading.get_ident() == here else real(*args)

    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "time", wall),
        (time, "time_ns", lambda: round(wall() * 1e6) * 1000),
        (time, "monotonic", monotonic),
        (time, "monotonic_ns", lambda: round(monotonic() * 1e6) * 1000),
        (time, "perf_counter", monotonic),
        (time, "clock_gettime", lambda _clock: monotonic()),
        (os, "urandom", source.randbytes),
        (random, "_urandom", source.randbytes),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in patches]
    state, real_random, hook, collects = random.getstate(), random.Random, sys.unraisablehook, gc.isenabled()
    for module, name, instead in patches:
        setattr(module, name, only_here(instead, getattr(module, name)))
    random.seed(source.getrandbits(64))
    setattr(random, "Random", SeededRandom)  # noqa: B010  # mypy does not let a class be assigned
    # Coroutines of killed processes are closed in the middle, and some complain of it.
    sys.unraisablehook = lambda _: None
    gc.disable()  # when it runs depends on what ran before
    gc.freeze()  # so that collecting what this run leaves is quick
    try:
        yield
    finally:
        for module, name, real in before:
            setattr(module, name, real)
        setattr(random, "Random", real_random)  # noqa: B010
        random.setstate(state)
        gc.collect()
        sys.unraisablehook = hook
        if collects:
            gc.enable()
