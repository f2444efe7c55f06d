"""Table "SMS": the sender at a provider that answers at once, beside bare consumers that only post: one with a general
HTTP client, one with the sender's own connections."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx2
from sqlalchemy.engine import Connection

from benchmarks.measure import Race, Row, Table, Target, per_second, race, summary
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.registry import Domain
from paceline.dispatch.stores import queue_store
from paceline.dispatch.worker.dispatching import dispatching
from paceline.kafka.log import KafkaLog
from paceline.messaging import LogEntry, MessageLog, MessageSource, Record
from paceline.server.wiring.database import installed_steps
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.outbox import SqlOutbox
from paceline.testing import eventually
from paceline.testing.servers.kafka import KafkaServer
from paceline.testing.servers.postgres import PostgresServer
from paceline_sms.consumer import Consumer
from paceline_sms.execution import MessageExecution
from paceline_sms.items import ITEM_TYPES, dispatch_configs
from paceline_sms.model import Message
from paceline_sms.ports import DeliveryOutcome, NullObserver
from paceline_sms.provider_chain import NamedProvider, ProviderChain, provider_downstream
from paceline_sms.providers.http_calls import Answer, HttpCalls
from paceline_sms.providers.webhook import WebhookProvider
from paceline_sms.stores.following import MessageFollower
from paceline_sms.stores.item_statements import enqueue
from paceline_sms.stores.message_statements import Kept, insert_messages
from paceline_sms.stores.sql import SqlDeliveryStore

USERS = 200
CONCURRENCY = 64
_runs: Iterator[int] = count(1)
PROVIDER = """
import asyncio

async def answer(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0]))
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class Place(NamedTuple):
    """Where messages lie, and where their status is kept."""

    database_url: str
    kafka: str | None = None


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    total, repeats = (200, 1) if quick else (3000, 5)
    table = Table("SMS")
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(fsync=True) as postgres,
        KafkaServer() as kafka,
        _instant_provider() as url,
    ):
        on_postgres = postgres.databases.create("sms")
        places = {
            "SQLite": Place(f"sqlite:///{Path(folder) / 'sms.db'}"),
            "PostgreSQL": Place(on_postgres),
            "Kafka": Place(on_postgres, kafka.bootstrap),
        }
        for name, place in places.items():
            _row(table, f"sender at an instant provider, {name}", _raced(place, url, total, repeats))
    table.close()
    return [table]


def _raced(place: Place, url: str, total: int, repeats: int) -> Race:
    return race(
        {
            "paceline": lambda: total / asyncio.run(_send_all(place, url, total)),
            "bare consumer, httpx2": lambda: total / asyncio.run(_post_all(place, total, _httpx_posts(url))),
            "bare consumer, our connections": lambda: total / asyncio.run(_post_all(place, total, _our_posts(url))),
        },
        repeats=repeats,
        warm_up=repeats > 1,
    )


def _row(table: Table, work: str, run: Race) -> None:
    ours = per_second(run.spread("paceline").median)
    for peer in (name for name in run.figures if name != "paceline"):
        theirs = per_second(run.spread(peer).median)
        table.add(Row(work, ours, f"{peer} {theirs}", run.ratio("paceline", peer), Target(least=0.5)))
    table.note(summary(work, run))


class _CountedStore(SqlDeliveryStore):
    """Counts the messages whose outcome is stored."""

    settled = 0

    def settle_within(self, within: Connection, outcomes: Sequence[DeliveryOutcome]) -> None:
        super().settle_within(within, outcomes)
        self.settled += len(outcomes)


async def _filled(place: Place, total: int, *, as_items: bool = False) -> tuple[Database, MessageLog, str]:
    """So many messages of many users, accepted as the gateway accepts them: on a topic, or as items of the queue."""
    shared = await database(place.database_url, steps=installed_steps())
    run = next(_runs)
    topic = f"sms-{run}"
    log: MessageLog = SqlOutbox(shared, poll_seconds=0.05)
    if place.kafka is not None:
        log = KafkaLog(place.kafka, topics=[topic], delivery_seconds=30)
    messages = [Message(number % USERS, "Hello World", f"{run}-{number}") for number in range(total)]
    await shared.write(insert_messages, messages, record=None if place.kafka is None else Kept(None))
    if as_items and place.kafka is None:
        await shared.write(enqueue, [(message, None) for message in messages], None)
        return shared, log, topic
    failures = await log.publish(
        [Record(topic, str(message.user_id), message.to_record_value()) for message in messages]
    )
    assert not any(failures), failures
    return shared, log, topic


class _Joined:
    """A source that has joined its group, with what came meanwhile."""

    def __init__(self, source: MessageSource, early: list[LogEntry]) -> None:
        self._source = source
        self._early = early

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        early, self._early = self._early, []
        return early or await self._source.receive(max_records, wait)


async def _joined(log: MessageLog, topic: str) -> MessageSource:
    """Joined before the clock runs: joining a group takes Kafka seconds."""
    source = await log.read(topic, "senders")
    return cast(MessageSource, _Joined(source, await source.receive(0, 1.0)))


async def _send_all(place: Place, provider_url: str, total: int) -> float:
    """Seconds our sender takes: from the topic, if there is Kafka, into the queue; claims, calls, outcomes."""
    shared, log, topic = await _filled(place, total, as_items=True)
    provider = WebhookProvider(provider_url)
    chain = ProviderChain([NamedProvider("webhook", provider, provider_downstream("webhook", place.database_url))])
    followers = {item_type: MessageFollower(item_type, expiry=timedelta(days=1)) for item_type in ITEM_TYPES}
    store = _CountedStore(shared, topic=topic, followers=followers)
    execution = MessageExecution(store, chain)
    configs = dispatch_configs(lease_seconds=30, hold_seconds=86_400, resends=False)
    source = await _joined(log, topic)

    async def join() -> MessageSource:
        return source

    stop = asyncio.Event()
    async with DispatchQueue(await queue_store(place.database_url, followers=followers)) as queue:
        started = time.perf_counter()
        reading = asyncio.create_task(Consumer(join, store, NullObserver()).run(stop))
        async with dispatching(queue, [Domain(config, execution) for config in configs], concurrency=CONCURRENCY):
            await eventually(lambda: store.settled >= total, within=300, every=0.02)
            spent = time.perf_counter() - started
        stop.set()
        await reading
    await execution.close()
    await chain.close()
    await log.close()
    await shared.close()
    return spent


Post = Callable[[bytes, dict[str, str]], Awaitable[bool]]
"""Posts a body with headers; whether it was taken."""


async def _post_all(place: Place, total: int, posting: AbstractAsyncContextManager[Post]) -> float:
    """Seconds a loop takes that reads, posts as many at once, and commits: no claims, no order, no status."""
    shared, log, topic = await _filled(place, total)
    source = await _joined(log, topic)
    started = time.perf_counter()
    done = 0
    async with posting as post:

        async def send(record: Record) -> None:
            document = json.loads(record.value)
            headers = {"Content-Type": "application/json", "Idempotency-Key": document["messageId"]}
            assert await post(json.dumps(document).encode(), headers)

        while done < total:
            entries = await source.receive(CONCURRENCY, 1.0)
            await asyncio.gather(*(send(entry.record) for entry in entries))
            await source.commit(entries)
            done += len(entries)
    spent = time.perf_counter() - started
    await source.close()
    await log.close()
    await shared.close()
    return spent


@asynccontextmanager
async def _httpx_posts(url: str) -> AsyncIterator[Post]:
    async with httpx2.AsyncClient(limits=httpx2.Limits(max_connections=CONCURRENCY)) as client:

        async def post(body: bytes, headers: dict[str, str]) -> bool:
            return (await client.post(url, content=body, headers=headers)).is_success

        yield post


@asynccontextmanager
async def _our_posts(url: str) -> AsyncIterator[Post]:
    calls = HttpCalls("bare", url, {}, timeout=10)

    async def post(body: bytes, headers: dict[str, str]) -> bool:
        return isinstance(await calls.post(body, headers), Answer)

    yield post
    await calls.close()


@contextmanager
def _instant_provider() -> Iterator[str]:
    """Answers every POST with 200, in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", PROVIDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/sms"
        finally:
            process.kill()
