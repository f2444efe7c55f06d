"""The queue's statements on PostgreSQL, where transactions really overlap."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.dialects import postgresql

from paceline.dispatch.changes import Cancellation
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_start, after_success, released
from paceline.dispatch.model import Claim, EnqueueRequest
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.status import Status
from paceline.dispatch.stores import admin_queries, postgres, postgres_claims, queue_store
from paceline.dispatch.stores.rows import ClaimRequest
from paceline.dispatch.stores.sql import SqlQueueStore
from paceline.errors import NotFound, StoreError, StoreUnavailable
from paceline.sql import hints
from paceline.sql.engine import Database
from paceline.sql.pipeline import BY_KEY, Raw, Rows, Statement, execute_pipeline
from paceline.testing import eventually

pytestmark = pytest.mark.quick

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
NOW = timedelta(0)
CONFIG = DispatchConfig(item_type="PAY")


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[QueueStore]:
    store = await queue_store(postgres_url)
    await store.configure(CONFIG)
    yield store
    await store.close()


async def claimed(store: QueueStore, *item_ids: str) -> list[Claim]:
    await store.enqueue([EnqueueRequest.of("PAY", item_id, {}) for item_id in item_ids], now=T)
    return [item.claim for item in (await store.claim("PAY", 100, NOW, now=T)).items]


async def somebody_waits_for_a_lock(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        row = await cursor.fetchone()
        return row is not None and row[0] > 0


@pytest.mark.parametrize("with_start", [False, True])
async def test_an_outcome_that_waits_for_the_record_of_its_start_is_written(
    store: QueueStore, postgres_url: str, with_start: bool
) -> None:
    """The outcome's snapshot is older than the row version it waited for: it must still find it, and see that the start
    is recorded."""
    (claim,) = await claimed(store, "a")
    other = Database(postgres_url)
    assert other.async_engine is not None
    async with other.async_engine.connect() as connection, connection.begin() as transaction:
        start = after_start(claim, STARTED, CONFIG, "B")
        assert await connection.run_sync(postgres.settle, [start], [], T) == [True]
        outcome = after_success(claim)._replace(start=start if with_start else None)
        ending = asyncio.create_task(store.settle([outcome], now=T))
        await eventually(lambda: somebody_waits_for_a_lock(postgres_url))
        await transaction.commit()
    assert await ending == [True]
    row = await store.find("PAY", "a")
    assert row is not None
    assert row[0].status is Status.COMPLETED
    trail = [(entry.action, entry.status_before) for entry in await store.audit("PAY", "a", 10, None)]
    assert trail == [("COMPLETED", "DISPATCHED"), ("DISPATCHED", "CLAIMED"), ("CLAIMED", "READY")]
    await other.close()


async def test_a_zombie_that_waits_for_the_recovery_of_its_claim_writes_nothing(
    store: QueueStore, postgres_url: str
) -> None:
    (claim,) = await claimed(store, "a")
    other = Database(postgres_url)
    assert other.async_engine is not None
    async with other.async_engine.connect() as connection, connection.begin() as transaction:
        await connection.run_sync(postgres.settle, [released(claim, "recovered")], [], T)
        zombie = asyncio.create_task(store.settle([after_success(claim)], now=T))
        toucher = asyncio.create_task(store.touch([claim], now=T))
        await eventually(lambda: somebody_waits_for_a_lock(postgres_url))
        await transaction.commit()
    assert await zombie == [False]
    assert await toucher == [False]
    row = await store.find("PAY", "a")
    assert row is not None
    assert row[0].status is Status.READY
    await other.close()


async def test_a_claim_skips_what_another_holds(store: QueueStore, postgres_url: str) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", name, {}) for name in "abcd"], now=T)
    other = Database(postgres_url)
    assert other.async_engine is not None
    async with other.async_engine.connect() as connection, connection.begin() as transaction:
        call = postgres_claims.ClaimCall(ClaimRequest("PAY", 2, NOW), T, None, "BATCH-1")
        (claimed_here,) = await connection.run_sync(postgres_claims.claim, [call])
        assert [item.claim.item_id for item in claimed_here.batch.items] == ["a", "b"]
        rest = await asyncio.wait_for(store.claim("PAY", 10, NOW, now=T), 20)
        assert [item.claim.item_id for item in rest.items] == ["c", "d"]
        await transaction.rollback()
    assert len((await store.claim("PAY", 10, NOW, now=T)).items) == 2
    await other.close()


async def test_a_hint_reaches_another_process_store(store: QueueStore, postgres_url: str) -> None:
    other = await queue_store(postgres_url)
    waiter = asyncio.create_task(other.wait(["PAY"], 60))
    number = 0
    while not waiter.done() and number < 200:
        number += 1
        await store.enqueue([EnqueueRequest.of("PAY", f"n{number}", {})])
        await asyncio.wait([waiter], timeout=0.1)
    assert waiter.done()
    await other.close()


async def test_the_listener_comes_back_after_its_connection_was_cut(store: QueueStore, postgres_url: str) -> None:
    await store.wait(["PAY"], 0.01)

    async def listeners() -> list[int]:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            cursor = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND (query LIKE 'LISTEN%' OR query LIKE '/* paceline hints */%')"
            )
            return [row[0] for row in await cursor.fetchall()]

    (first,) = await eventually(listeners)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("SELECT pg_terminate_backend(%s)", (first,))

    async def another() -> bool:
        return any(pid != first for pid in await listeners())

    await eventually(another)


def plan_of_a_claim(connection: psycopg.Connection[Any], limit: int) -> str:
    bounds = [str(limit), "1000000", None, None, str(limit), "f", "worker", "1.0"]
    arguments = [None, "PAY", "60000000", "B", "t", "{}", "{}", "{}", "{}", "", *bounds]
    connection.execute("BEGIN")
    connection.execute(BY_KEY.sql)
    connection.execute(f"PREPARE claim AS {postgres_claims.CLAIM.sql}")
    words = ", ".join("NULL" if word is None else f"'{word}'" for word in arguments)
    explained = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE claim ({words})").fetchall()
    connection.execute("ROLLBACK")
    return "\n".join(row[0] for row in explained)


async def test_a_claim_looks_into_a_lanes_next_priority_only_if_it_needs_it(
    store: QueueStore, postgres_url: str
) -> None:
    lanes = 20
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            f"""INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at,
                    slotted, claim_epoch, retry_count, created_at, updated_at, lane, priority)
                SELECT 'PAY', n, 'READY', now(), now(), false, 0, 0, now(), now(), n % {lanes}, n / {lanes} % 10
                FROM generate_series(0, 999) AS n"""
        )
        plan = plan_of_a_claim(connection, 5 * lanes)
    scans = [line for line in plan.splitlines() if "paceline_dispatch_queue_turn_ix" in line]
    loops = sum(int(count) for line in scans for count in re.findall(r"actual.* loops=(\d+)", line))
    # To each lane once, into it once, and behind the last lane.
    assert loops <= 2 * lanes + 3, scans


@pytest.mark.parametrize("ready", [50, 20_000])
async def test_a_claim_reads_as_many_rows_as_it_claims_whatever_else_is_queued(
    store: QueueStore, postgres_url: str, ready: int
) -> None:
    """Peer bug 17: future, dead, finished and paused rows are no index entries a claim must step over."""
    assert isinstance(store, SqlQueueStore)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for item_type, status, count, due in [
            ("PAY", "READY", ready, "now()"),
            ("PAY", "DEAD_LETTER", 20_000, "now() - interval '1 day'"),
            ("PAY", "COMPLETED", 20_000, "now() - interval '1 day'"),
            ("PAUSED", "READY", 20_000, "now() - interval '1 day'"),
        ]:
            connection.execute(
                f"""INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at,
                        slotted, claim_epoch, retry_count, created_at, updated_at)
                    SELECT '{item_type}', '{status}' || n, '{status}', {due}, {due}, false, 0, 0, now(), now()
                    FROM generate_series(1, {count}) AS n"""
            )
        plan = plan_of_a_claim(connection, 20)
    assert "paceline_dispatch_queue_turn_ix" in plan
    assert "Tid Scan on paceline_dispatch_queue" in plan
    assert "Seq Scan on paceline_dispatch_queue" not in plan
    scans = [line for line in plan.splitlines() if "paceline_dispatch_queue_turn_ix" in line]
    read = [float(rows) for line in scans for rows in re.findall(r"actual.* rows=([\d.]+)", line)]
    assert max(read) == 20, scans


async def test_a_look_reads_the_first_row_of_each_types_indexes(store: QueueStore, postgres_url: str) -> None:
    """However much is queued, in flight or done: an idle worker looks all the time."""
    statement = str(admin_queries._outlooks("postgresql", True).compile(dialect=postgresql.dialect()))
    statement = statement.replace("(__[POSTCOMPILE_item_types])", "('PAY')")
    assert "POSTCOMPILE" not in statement
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for status in ("READY", "CLAIMED", "UNKNOWN", "COMPLETED"):
            connection.execute(
                f"""INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at,
                        seen_at, slotted, claim_epoch, retry_count, created_at, updated_at)
                    SELECT 'PAY', '{status}' || n, '{status}', now(), now() + n * interval '1 second', now(), false,
                        0, 0, now(), now() FROM generate_series(1, 20000) AS n"""
            )
        connection.execute("ANALYZE paceline_dispatch_queue")
        rows = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement}").fetchall()
    scans = [row[0] for row in rows if "on paceline_dispatch_queue" in row[0]]
    assert len(scans) == 3
    for index in ("due", "flight", "unknown"):
        assert any(f"using paceline_dispatch_queue_{index}_ix" in scan for scan in scans), scans
    assert all(re.search(r"actual.* rows=1(\.00)? ", scan) for scan in scans), scans


async def test_unusable_settings_are_reported_and_break_nothing_else(store: QueueStore, postgres_url: str) -> None:
    """An operator may update the table in place, and may err."""
    await store.configure(DispatchConfig(item_type="OTHER"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE paceline_dispatch_config SET batch_size = 0 WHERE item_type = 'PAY'")
    with pytest.raises(StoreError, match="'PAY' in the database are wrong: batch_size"):
        await store.config("PAY")
    assert await store.config("OTHER") is not None


@pytest.mark.parametrize("statement", [postgres.SETTLE, postgres.TOUCH])
async def test_settling_and_touching_look_rows_up_by_their_keys(
    store: QueueStore, postgres_url: str, statement: Statement
) -> None:
    """The planner left alone reads and hashes the whole queue for a batch, if it holds some ten thousand rows."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            """INSERT INTO paceline_dispatch_queue (item_type, item_id, queue_status, scheduled_exec_time, due_at,
                   slotted, claim_epoch, retry_count, created_at, updated_at)
               SELECT 'PAY', 'item' || n, 'CLAIMED', now(), now(), false, 1, 0, now(), now()
               FROM generate_series(1, 20000) AS n"""
        )
        connection.execute("ANALYZE paceline_dispatch_queue")
        connection.execute(BY_KEY.sql)
        connection.execute(f"PREPARE asked AS {statement.sql}")
        words = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", statement.sql))))
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE asked ({words})"))
    assert "Index Scan using paceline_dispatch_queue_pk" in plan
    assert "Seq Scan on paceline_dispatch_queue" not in plan
    assert "Hash Join" not in plan


async def test_a_statement_that_fails_leaves_its_connection_usable(store: QueueStore, postgres_url: str) -> None:
    (claim,) = await claimed(store, "a")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE paceline_dispatch_audit RENAME TO elsewhere")
        for _ in range(15):  # more than the pool has connections
            with pytest.raises(StoreError):
                await store.settle([after_success(claim)], now=T)
        connection.execute("ALTER TABLE elsewhere RENAME TO paceline_dispatch_audit")
    assert await store.settle([after_success(claim)], now=T) == [True]


async def backends(url: str, condition: str) -> list[int]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
        )
        return [row[0] for row in await cursor.fetchall()]


async def test_a_cancelled_statement_does_not_go_on_at_the_server(store: QueueStore, postgres_url: str) -> None:
    (claim,) = await claimed(store, "a")
    async with await psycopg.AsyncConnection.connect(postgres_url) as blocker:
        await blocker.execute("SELECT 1 FROM paceline_dispatch_queue FOR UPDATE")
        for _ in range(3):
            settling = asyncio.create_task(store.settle([after_success(claim)], now=T))
            await eventually(lambda: backends(postgres_url, "wait_event_type = 'Lock'"))
            settling.cancel()
            await asyncio.wait([settling])
            assert settling.cancelled()

        async def nobody_waits() -> bool:
            return not await backends(postgres_url, "wait_event_type = 'Lock'")

        await eventually(nobody_waits)
    row = await store.find("PAY", "a")
    assert row is not None
    assert row[0].status is Status.CLAIMED
    assert await store.settle([after_success(claim)], now=T) == [True]


async def test_connections_cut_while_idle_cost_one_failure_not_one_each(store: QueueStore, postgres_url: str) -> None:
    claims = await claimed(store, *"abcdefgh")
    await asyncio.gather(*(store.touch([claim], now=T) for claim in claims))
    idle = await backends(postgres_url, "state = 'idle' AND query NOT LIKE 'LISTEN%'")
    assert len(idle) > 3, "one of them is not the store's"
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", (idle,))
    failures = 0
    for claim in claims:
        try:
            assert await store.touch([claim], now=T) == [True]
        except StoreUnavailable:
            failures += 1
    assert failures <= 1


async def test_first_settings_do_not_replace_what_an_operator_set_meanwhile(
    store: QueueStore, postgres_url: str
) -> None:
    async with DispatchQueue(await queue_store(postgres_url)) as worker:
        look = worker.store.config

        async def look_and_dawdle(item_type: str) -> DispatchConfig | None:
            result = await look(item_type)
            if result is None:
                await store.configure(DispatchConfig(item_type=item_type, enabled=False, batch_size=7))
            return result

        worker.store.config = look_and_dawdle  # type: ignore[method-assign]
        defined = await worker.define(DispatchConfig(item_type="NEW"))
    assert (defined.enabled, defined.batch_size) == (False, 7)


async def test_an_item_given_back_is_claimed_again_though_later_ones_were_claimed(store: QueueStore) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", name, {}) for name in "abcd"])
    batch = await store.claim("PAY", 4, NOW)
    assert await store.settle([released(batch.items[0].claim, "given back")]) == [True]
    await store.enqueue([EnqueueRequest.of("PAY", "e", {})])
    taken: list[str] = []

    async def both_came() -> bool:
        taken.extend(item.claim.item_id for item in (await store.claim("PAY", 4, NOW)).items)
        return sorted(taken) == ["a", "e"]

    await eventually(both_came)


async def test_concurrent_claims_of_one_store_share_the_items(store: QueueStore) -> None:
    await store.enqueue([EnqueueRequest.of("PAY", f"{n:03}", {}) for n in range(100)])
    batches = await asyncio.gather(*(store.claim("PAY", 7, NOW) for _ in range(20)))
    while more := (await store.claim("PAY", 7, NOW)).items:
        batches[0].items.extend(more)
    taken = [item.claim.item_id for batch in batches for item in batch.items]
    assert sorted(taken) == [f"{n:03}" for n in range(100)]


async def test_an_enqueue_right_after_another_is_notified_too(store: QueueStore, postgres_url: str) -> None:
    """At most so many hints a second, but the last item of a burst must not wait for the next poll."""
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as listener:
        await listener.execute(f"LISTEN {hints.CHANNEL}")
        # All in one turn of the loop, so that only the first sends a notification.
        await asyncio.gather(*(store.enqueue([EnqueueRequest.of("PAY", name, {})]) for name in "abc"))
        payloads = [notice.payload async for notice in listener.notifies(timeout=20, stop_after=2)]
    # On a busy machine the others may be due, too, and all come at once.
    assert len(payloads) >= 2
    assert set(payloads) == {"PAY"}


async def test_an_enqueue_a_claim_and_an_outcome_are_one_flush_each(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each a transaction: with round trips of their own, BEGIN and COMMIT were most of the time."""
    flushes: list[list[str]] = []
    pipeline = Database.pipeline

    async def noted(raw: Raw, calls: Sequence[tuple[Statement, Sequence[str | None]]]) -> list[Rows]:
        flushes.append([statement.name for statement, _ in calls])
        return await execute_pipeline(raw, calls)

    async def noted_pipeline(database: Database, calls: Sequence[tuple[Statement, Sequence[str | None]]]) -> list[Rows]:
        flushes.append([statement.name for statement, _ in calls])
        return await pipeline(database, calls)

    monkeypatch.setattr(postgres, "execute_pipeline", noted)
    monkeypatch.setattr(Database, "pipeline", noted_pipeline)
    (claim,) = await claimed(store, "a")
    assert await store.settle([after_success(claim)]) == [True]
    assert [(names[0], names[-1]) for names in flushes] == [
        ("paceline_queue_enqueue", "paceline_queue_enqueue"),
        ("paceline_begin", "paceline_commit"),
        ("paceline_begin", "paceline_commit"),
    ]


async def test_an_enqueue_whose_commit_fails_is_not_acknowledged(store: QueueStore, postgres_url: str) -> None:
    """There is no COMMIT statement that could fail: the server reports the failure after the results."""
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute(
            """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'refused at the commit'; END $$"""
        )
        await connection.execute(
            """CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON paceline_dispatch_queue
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"""
        )
        with pytest.raises(StoreError, match="refused at the commit"):
            await store.enqueue([EnqueueRequest.of("PAY", "a", {})])
        assert await store.find("PAY", "a") is None
        await connection.execute("DROP TRIGGER refuse ON paceline_dispatch_queue")
    (queued,) = await store.enqueue([EnqueueRequest.of("PAY", "a", {})])
    assert not queued.existing


async def test_a_transaction_that_was_rolled_back_does_not_keep_the_next_ones_from_prepared_statements(
    store: QueueStore,
) -> None:
    """With a rollback the driver deallocates every prepared statement of the session, ours too."""
    first, second, third = await claimed(store, "a", "b", "c")
    assert await store.settle([released(first, "not now")], now=T) == [True]
    for _ in range(10):  # so often that the driver prepares it
        await store.find("PAY", "a")
    with pytest.raises(NotFound):
        await store.change_items("PAY", ["a", "nobody"], Cancellation(), now=T)
    late = T + timedelta(minutes=1)
    assert await store.settle([released(second, "silent")], silent_for=timedelta(seconds=1), now=late) == [True]
    assert await store.settle([after_success(third, result_json="1")], now=late) == [True]
