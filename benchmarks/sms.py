"""Table "SMS": the sender at a provider that answers at once, beside a bare consumer that only posts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx2

from benchmarks.measure import Race, Row, Table, Target, per_second, race, summary
from headgate.apps.notifications.delivery import Delivery
from headgate.apps.notifications.provider_chain import NamedProvider, ProviderChain
from headgate.apps.notifications.providers.webhook import WebhookProvider
from headgate.apps.notifications.stores.sql import SqlDeliveryStore
from headgate.messaging import Record
from headgate.sql.databases import database
from headgate.sql.engine import Database
from headgate.sql.outbox import SqlOutbox
from headgate.testing import eventually
from headgate.testing.servers.postgres import PostgresServer

USERS = 200
CONCURRENCY = 64
_runs: Iterator[int] = count(1)


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    total = 500 if quick else 3000
    with PostgresServer(fsync=True) as postgres, _instant_provider() as url:
        where = postgres.databases.create("sms")
        run = race(
            {
                "headgate": lambda: total / asyncio.run(_send_all(where, url, total)),
                "bare consumer": lambda: total / asyncio.run(_post_all(where, url, total)),
            }
        )
        table = Table("SMS")
        _row(table, "sender at an instant provider", run)
        table.close()
    return [table]


def _row(table: Table, work: str, run: Race) -> None:
    ratio = run.ratio("headgate", "bare consumer")
    ours, theirs = per_second(run.spread("headgate").median), per_second(run.spread("bare consumer").median)
    table.add(Row(work, ours, f"bare consumer {theirs}", ratio, Target(least=0.5)))
    table.note(summary(work, run))


async def _filled(url: str, total: int) -> tuple[Database, SqlOutbox, str]:
    """A topic with so many messages of many users."""
    shared = await database(url)
    log = SqlOutbox(shared, poll_seconds=0.05)
    run = next(_runs)
    topic = f"sms-{run}"
    await log.publish(
        [
            Record(
                topic,
                str(number % USERS),
                json.dumps({"userId": number % USERS, "message": "Hello World", "messageId": f"{run}-{number}"}),
            )
            for number in range(total)
        ]
    )
    return shared, log, topic


async def _send_all(url: str, provider_url: str, total: int) -> float:
    """Seconds our sender takes: claims, calls, outcomes, commits."""
    shared, log, topic = await _filled(url, total)
    chain = ProviderChain([NamedProvider("webhook", WebhookProvider(provider_url))])
    store = SqlDeliveryStore(shared, topic=topic)
    delivery = Delivery(
        lambda: log.read(topic, "senders"), store, chain, topic=topic, concurrency=CONCURRENCY, lease_seconds=30
    )
    stop = asyncio.Event()
    started = time.perf_counter()
    running = asyncio.create_task(delivery.run(stop))
    await eventually(lambda: _is_empty(shared, topic), within=300, every=0.02)
    spent = time.perf_counter() - started
    stop.set()
    await running
    await chain.close()
    await log.close()
    await shared.close()
    return spent


async def _post_all(url: str, provider_url: str, total: int) -> float:
    """Seconds a loop takes that reads, posts as many at once, and commits: no claims, no order, no status."""
    shared, log, topic = await _filled(url, total)
    source = await log.read(topic, "senders")
    started = time.perf_counter()
    done = 0
    async with httpx2.AsyncClient(limits=httpx2.Limits(max_connections=CONCURRENCY)) as client:

        async def post(record: Record) -> None:
            document = json.loads(record.value)
            headers = {"Idempotency-Key": document["messageId"]}
            (await client.post(provider_url, json=document, headers=headers)).raise_for_status()

        while done < total:
            delivered = await source.receive(CONCURRENCY, 1.0)
            await asyncio.gather(*(post(each.record) for each in delivered))
            await source.commit(delivered)
            done += len(delivered)
    spent = time.perf_counter() - started
    await source.close()
    await log.close()
    await shared.close()
    return spent


async def _is_empty(shared: Database, topic: str) -> bool:
    from headgate.sql.outbox import first_ids

    return not await shared.read(first_ids, topic, 1)


@contextmanager
def _instant_provider() -> Iterator[str]:
    """Answers every POST with 200, in a thread of its own."""
    ready = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{ports[0]}/sms"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
