"""An idle process: how often its background loops query the store. Polling is the cost of an idle process."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from paceline.server.cli.worker import Role, _work
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.sql.engine import Database
from paceline.sql.listening import Listening

PER_MINUTE = {
    "sql.outbox_looks.lease_and_read": 24,  # all topics at once, by a third of the lease of ten seconds
    "dispatch.stores.admin_queries.outlooks": 90,  # all item types every two seconds, and messages every second
    "dispatch.stores.admin_queries.configs": 12,  # the flow of work every ten seconds, and the console's numbers
    "slots.stores.policies.configs": 14,  # those that follow a downstream, every five seconds
    # By the worker of the service, and by that of messages.
    "dispatch.stores.admin_queries.configs_of": 12,
    "dispatch.stores.admin_queries.stats": 24,
    "dispatch.stores.periodic.tasks": 12,
    "dispatch.stores.workers.beat": 12,
    "paceline_sms.stores.item_statements.expire": 12,
    "downstream.stores.sql_states.SqlStateStore._read": 12,  # the breaker of the bank, for its metrics
    "sql.schema.now": 12,  # whether the database takes writes, and the clock of the numbers
}
"""How often an idle process may run these on the database."""
OTHERS = 6
"""How often it may run each other function: every ten seconds."""
ALL = 240
"""How often it may run any of them."""
MINUTE = 58.0
"""Less than one: what comes every ten seconds comes six times at most, also if the machine is busy."""
SETTLED = 30.0
"""By then everything has started, and what comes at once came once."""


class SkippingSelector(selectors.DefaultSelector):
    """Does not wait for a timer: its loop's clock skips the time instead, unless a thread is at work."""

    loop: SkippingLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0 or self.loop.threads_at_work:
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.loop.skipped += timeout
        return events


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop on which an idle minute takes as long as the work that is done in it."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.threads_at_work = 0
        selector = SkippingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return super().time() + self.skipped

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self.threads_at_work += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._back)
        return future

    def _back(self, _future: object) -> None:
        self.threads_at_work -= 1


Call = Callable[..., Coroutine[Any, Any, Any]]


def in_real_time(call: Call) -> Call:
    """A call during which the loop's clock does not skip: another process, or a thread, works for it."""

    async def called(*arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        loop.threads_at_work += 1
        try:
            return await call(*arguments)
        finally:
            loop.threads_at_work -= 1

    return called


@pytest.fixture
def calls(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function was run on the database."""
    counted: Counter[str] = Counter()
    run = in_real_time(Database._run)

    async def counting(self: Database, *arguments: Any) -> Any:
        work = arguments[4]
        counted[f"{work.__module__.removeprefix('paceline.')}.{work.__qualname__}"] += 1
        return await run(self, *arguments)

    monkeypatch.setattr(Database, "_run", counting)
    monkeypatch.setattr(Listening, "open", in_real_time(Listening.open))
    monkeypatch.setattr(Listening, "ask", in_real_time(Listening.ask))
    return counted


async def idle_minute(calls: Counter[str]) -> Counter[str]:
    await asyncio.sleep(SETTLED)
    before = calls.copy()
    await asyncio.sleep(MINUTE)
    return calls - before


def check(counted: Counter[str]) -> None:
    too_often = {name: count for name, count in counted.items() if count > PER_MINUTE.get(name, OTHERS)}
    assert too_often == {}
    assert counted.total() <= ALL
    assert counted["sql.outbox_looks.lease_and_read"] >= 12


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'idle.db'}"
    return str(request.getfixturevalue("postgres_url"))


def test_an_idle_service_hardly_reads(database_url: str, calls: Counter[str]) -> None:
    async def serve() -> Counter[str]:
        app = create_app(Settings.load(database_url=database_url))
        async with app.router.lifespan_context(app):
            return await idle_minute(calls)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        counted = runner.run(serve())
    check(counted)


def test_an_idle_worker_hardly_reads(database_url: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.server.cli.worker.stop_on_signals", lambda *_: None)

    async def work() -> Counter[str]:
        working = asyncio.create_task(_work(Settings.load(database_url=database_url), Role.ALL, None))
        try:
            return await idle_minute(calls)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        counted = runner.run(work())
    check(counted)
