"""The peers of table "Dispatch", each with one task that does nothing, on a database of its own."""

# The peers are not there when types are checked.
# mypy: allow-untyped-decorators

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions
from procrastinate import App, PsycopgConnector

QUEUE = "work"
APPLICATION = "peer"
UNFINISHED = "SELECT 1 FROM dbos.workflow_status WHERE status <> 'SUCCESS' LIMIT 1"
TIMEOUT = 120.0


# -- procrastinate -------------------------------------------------------------------------------------------------


def procrastinate(url: str) -> App:
    """Procrastinate with a task `noop`."""
    app = App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=16))

    @app.task(name="noop", queue=QUEUE)
    async def noop(number: int, context: dict[str, str]) -> None: ...

    return app


async def with_procrastinate(url: str, work: Callable[[App], Awaitable[Any]]) -> float:
    """Seconds that `work` took."""
    app = procrastinate(url)
    async with app.open_async():
        started = time.perf_counter()
        await work(app)
        return time.perf_counter() - started


# -- DBOS ----------------------------------------------------------------------------------------------------------


@DBOS.workflow(name="noop")
def _noop(number: int, context: dict[str, str]) -> None: ...


_NOOP: EnqueueOptions = {"workflow_name": "noop", "queue_name": QUEUE}


class Dbos:
    """DBOS, launched only while it executes, so that its polling does not disturb the others."""

    def __init__(self, url: str) -> None:
        self._url = url
        driver = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
        self._engine = sqlalchemy.create_engine(driver, poolclass=sqlalchemy.NullPool)
        with self._launched():
            # Without a limit on what runs at once, as is its default, it is fastest; its poll of a second would count.
            DBOS.register_queue(QUEUE, polling_interval_sec=0.01)

    def enqueue(self, callers: int, total: int, context: dict[str, str]) -> float:
        """Jobs per second that threads enqueue one by one, without a worker."""
        self._forget()
        with self._client(callers) as client, ThreadPoolExecutor(callers) as threads:
            list(threads.map(lambda number: client.enqueue(_NOOP, number, context), range(callers)))
            started = time.perf_counter()
            list(threads.map(lambda number: client.enqueue(_NOOP, number, context), range(total)))
            return total / (time.perf_counter() - started)

    def execute(self, total: int, context: dict[str, str]) -> float:
        """How many a second it executes, from the moment all of them are there to the last recorded end."""
        self._forget()
        with self._launched(), self._client() as client, psycopg.connect(self._url, autocommit=True) as watch:
            DBOS.enqueue_workflow(QUEUE, _noop, 0, context).get_result(polling_interval_sec=0.01)
            with self._engine.begin() as transaction:
                for number in range(total):
                    client.enqueue_in_transaction(transaction, _NOOP, number, context)
            started = time.perf_counter()
            while time.perf_counter() < started + TIMEOUT:
                if not watch.execute(UNFINISHED).fetchall():
                    return total / (time.perf_counter() - started)
                time.sleep(0.02)
        raise TimeoutError(f"DBOS did not execute {total} workflows within {TIMEOUT:g} s")

    @contextmanager
    def _launched(self) -> Iterator[None]:
        DBOS(config={"name": APPLICATION, "system_database_url": self._url, "log_level": "ERROR"})
        DBOS.launch()
        try:
            yield
        finally:
            DBOS.destroy()

    @contextmanager
    def _client(self, connections: int = 1) -> Iterator[DBOSClient]:
        client = DBOSClient(
            system_database_url=self._url, system_database_pool_size=connections, application_name=APPLICATION
        )
        try:
            yield client
        finally:
            client.destroy()

    def _forget(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("TRUNCATE dbos.workflow_status CASCADE")
