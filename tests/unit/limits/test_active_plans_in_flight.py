"""Plans replaced while calls are decided: calls that begin after that use the new ones."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline import AsyncLimiter, FixedWindow, LeasePolicy, Limiter, Plan
from paceline.limits.plan_book import PlanBook
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from tests.effort import is_thorough

ROUNDS = 100
ROUNDS_OF_THREADS = ROUNDS if is_thorough() else 50
"""Threads find a mistake sooner: they take turns anywhere."""


def plans(limit: int) -> list[Plan]:
    return [Plan("day", FixedWindow(limit, "P1D")), Plan("week", FixedWindow(limit, "P7D"))]


class Elsewhere(MemoryLimitStore):
    """A store that is remote for a limiter."""

    in_process = False


ASKED: dict[str, Callable[[Any], Any]] = {
    "one plan": lambda limiter: limiter.acquire("u", "day"),
    "two plans": lambda limiter: limiter.acquire("u", ["day", "week"]),
    "two plans, two units": lambda limiter: limiter.peek("u", ["week", "day"], 2),
    "two keys": lambda limiter: limiter.acquire_chain([("u", "day", 1), ("v", "week", 1)]),
}
LIMITERS: dict[str, dict[str, Any]] = {
    "in process": {"store": MemoryLimitStore},
    "elsewhere": {"store": Elsewhere},
    "leased": {"store": Elsewhere, "lease": LeasePolicy()},
}


@pytest.fixture(autouse=True)
def hasty_threads() -> Iterator[None]:
    """Threads that take turns between almost any two steps."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Replacing:
    """Raises the limit again and again, in a thread of its own."""

    def __init__(self, limiter: Limiter | AsyncLimiter, rounds: int) -> None:
        self.limiter = limiter
        self.rounds = rounds
        self.raised_to = 1_000_000
        """A limit that is in force, or was and is higher by now."""
        self.decided = threading.Event()
        self.over = False
        self._thread = threading.Thread(target=self._raise)

    def _raise(self) -> None:
        for limit in range(self.raised_to + 1, self.raised_to + 1 + self.rounds):
            self.limiter.replace_plans(plans(limit))
            self.raised_to = limit
            self.decided.clear()
            self.decided.wait(10)
        self.over = True

    def __enter__(self) -> Replacing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("made", LIMITERS.values(), ids=LIMITERS)
def test_peer_bug_12_plans_replaced_while_threads_decide(made: dict[str, Any], ask: Callable[[Limiter], Any]) -> None:
    limiter = Limiter(**made | {"store": made["store"]()}, plans=plans(1_000_000))
    replacing, stale = Replacing(limiter, ROUNDS_OF_THREADS), []

    def decide() -> None:
        while not replacing.over:
            least = replacing.raised_to
            decision = ask(limiter)
            if decision.limit < least:
                stale.append((decision.limit, least))
            replacing.decided.set()

    threads = [threading.Thread(target=decide) for _ in range(3)]
    with replacing:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert not stale
    assert ask(limiter).limit == 1_000_000 + ROUNDS_OF_THREADS
    limiter.close()


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("made", LIMITERS.values(), ids=LIMITERS)
async def test_peer_bug_12_plans_replaced_while_a_loop_decides(
    made: dict[str, Any], ask: Callable[[AsyncLimiter], Any]
) -> None:
    class Store(AsyncMemoryLimitStore):
        in_process = made["store"].in_process

    limiter = AsyncLimiter(**made | {"store": Store(made["store"]())}, plans=plans(1_000_000))
    replacing, stale = Replacing(limiter, ROUNDS), []

    async def decide() -> None:
        while not replacing.over:
            least = replacing.raised_to
            decision = await ask(limiter)
            if decision.limit < least:
                stale.append((decision.limit, least))
            replacing.decided.set()
            await asyncio.sleep(0)

    with replacing:
        await asyncio.gather(decide(), decide())
    assert not stale
    assert (await ask(limiter)).limit == 1_000_000 + ROUNDS
    await limiter.close()


def test_peer_bug_12_plans_replaced_while_they_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(plans=plans(100))
    rules_of = PlanBook.rules_of
    looked: list[str] = []

    def replaced_meanwhile(book: PlanBook, name: str, key: str) -> Any:
        result = rules_of(book, name, key)
        if not looked:
            looked.append(name)
            limiter.replace_plans(plans(5))
        return result

    monkeypatch.setattr(PlanBook, "rules_of", replaced_meanwhile)
    limiter.acquire("u", ["week", "day"])
    assert looked == ["week"]
    assert [limiter.acquire("v", ["week", "day"]).allowed for _ in range(6)] == [True] * 5 + [False]
