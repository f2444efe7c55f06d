"""The `PermitStore` port: one suite, every store; and Redis's Lua against the pure arithmetic it translates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import oracle

from paceline.downstream import permits
from paceline.downstream.permits import LOOK_AHEAD_US, PermitPolicy, Permits
from paceline.downstream.ports import PermitStore
from paceline.downstream.stores.host import HostPermitStore
from paceline.downstream.stores.postgres_permits import IDLE_TIMEOUT, ROW
from paceline.downstream.stores.redis import RedisPermitStore
from paceline.downstream.stores.sql_permits import SqlPermitStore, locked_row
from paceline.downstream.stores.tables import permit_gate
from paceline.sql import pipeline
from paceline.sql.databases import database
from paceline.sql.engine import Database
from paceline.sql.pipeline import BEGIN, Calls, Raw, Rows, execute_pipeline, run_pipeline, text_of, whole_of
from paceline.testing import eventually
from paceline.testing.servers.redis import RedisServer

AN_HOUR = 3600.0
NO_PACE = PermitPolicy(2, 1, 2)
LOCK: Calls = [(BEGIN, ()), (ROW, ("bank", IDLE_TIMEOUT))]

Open = Callable[[PermitPolicy], PermitStore]


@pytest.fixture(params=["sqlite", "postgresql", "redis", "host"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores that share their permits, as processes do."""
    stores: list[PermitStore] = []
    if request.param == "redis":
        url, name = str(request.getfixturevalue("redis_location")), uuid4().hex

        def opening(policy: PermitPolicy) -> PermitStore:
            stores.append(RedisPermitStore(url, name, policy, longest_hold=0.0))
            return stores[-1]
    elif request.param == "host":
        url = request.getfixturevalue("host_url")

        def opening(policy: PermitPolicy) -> PermitStore:
            stores.append(HostPermitStore(url, "bank", policy))
            return stores[-1]
    else:
        sqlite = f"sqlite:///{tmp_path / 'permits.db'}"
        url = sqlite if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
        await (await database(url)).close()

        def opening(policy: PermitPolicy) -> PermitStore:
            stores.append(SqlPermitStore(Database(url), "bank", policy, longest_hold=0.0, timeout=30.0))
            return stores[-1]

    yield opening
    for store in stores:
        await store.close()


async def test_there_are_as_many_permits_as_the_limit_over_all_processes(opened: Open) -> None:
    here, there = opened(NO_PACE), opened(NO_PACE)
    callers = [(store, f"{name}-{number}") for number in range(5) for name, store in (("h", here), ("t", there))]
    grants = await asyncio.gather(*(store.take(caller, AN_HOUR) for store, caller in callers))
    assert sum(grant.wait_us == 0 for grant in grants) == 2
    assert {grant.wait_us for grant in grants if grant.wait_us} == {1_000_000 - LOOK_AHEAD_US}


async def test_a_permit_is_free_a_while_after_it_was_given_back(opened: Open) -> None:
    store = opened(PermitPolicy(1, 1))
    granted = await store.take("a", AN_HOUR)
    assert granted.wait_us == 0
    await store.free("a", granted.now_us + round((AN_HOUR - 1) * 1e6))
    await store.free("nobody", 0)
    assert (await store.take("b", AN_HOUR)).wait_us > 0
    await store.free("a", granted.now_us + round((AN_HOUR + 1) * 1e6))
    await store.free("a", 0)
    assert (await store.take("b", AN_HOUR)).wait_us == 0


async def test_a_holder_exchanges_its_permit(opened: Open) -> None:
    store = opened(PermitPolicy(1, 1))
    assert (await store.take("a", AN_HOUR)).wait_us == 0
    assert (await store.take("a", AN_HOUR)).wait_us == 0
    assert (await store.take("b", AN_HOUR)).wait_us > 0


async def test_calls_of_two_processes_are_paced_together(opened: Open) -> None:
    an_hour_apart = PermitPolicy(100, round(AN_HOUR * 1e6))
    here, there = opened(an_hour_apart), opened(an_hour_apart)
    assert (await here.take("a", AN_HOUR))[:2] == (0, 0)
    assert (await there.take("b", AN_HOUR)).wait_us > 0
    assert (await here.take("c", AN_HOUR)).wait_us > 0


async def test_a_redis_that_forgot_grants_nothing_until_the_longest_call_is_over(own_redis: RedisServer) -> None:
    """Restarted without its data; then with old data, which looks the same as new."""
    own_redis.kill()
    store = RedisPermitStore(own_redis.url, "bank", PermitPolicy(50, 1), longest_hold=0.2, timeout=1.0)
    patient = RedisPermitStore(own_redis.url, "bank", PermitPolicy(50, 1), longest_hold=AN_HOUR, timeout=1.0)
    await asyncio.to_thread(own_redis.start)

    async def granted() -> bool:
        return (await store.take("a", AN_HOUR)).wait_us == 0

    assert not await granted(), "a set that is new is not all free"
    await eventually(granted)
    assert (await patient.take("b", AN_HOUR)).wait_us == 0, "the same life: nothing was lost"
    own_redis.kill()
    await asyncio.to_thread(own_redis.start)
    assert (await patient.take("c", AN_HOUR)).wait_us > 0
    assert (await store.take("d", AN_HOUR)).wait_us > 0
    await store.close()
    await patient.close()


async def test_a_restarted_database_may_have_lost_permits(postgres_url: str) -> None:
    shared = await database(postgres_url)
    store = SqlPermitStore(shared.share(), "bank", NO_PACE, longest_hold=AN_HOUR)
    assert (await store.take("a", AN_HOUR)).wait_us == 0, "a new database has no calls before it"

    def restarted(connection: sa.Connection) -> None:
        text = connection.execute(sa.select(permit_gate.c.state)).scalar_one()
        connection.execute(sa.update(permit_gate).values(state="4711" + text[text.index(" ") :]))

    await shared.write(restarted)
    assert (await store.take("b", AN_HOUR)).wait_us > 0
    await store.close()
    await shared.close()


histories = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from("abcdef"), st.integers(1, 3_000_000), st.integers(0, 400_000)),
        st.tuples(st.just("free"), st.sampled_from("abcdef"), st.integers(0, 1_500_000), st.integers(0, 400_000)),
    ),
    max_size=40,
)


@given(histories, st.integers(1, 4), st.integers(1, 300_000), st.integers(1, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_decides_as_the_arithmetic_does(
    runner: asyncio.Runner,
    redis_location: str,
    history: list[tuple[str, str, int, int]],
    number: int,
    spacing: int,
    burst: int,
) -> None:
    async def replay() -> None:
        policy, now = PermitPolicy(number, spacing, burst), 1_800_000_000_000_000
        store = RedisPermitStore(redis_location, uuid4().hex, policy, longest_hold=2.0)
        state = permits.reopened(Permits({}), "this", 2_000_000, now)
        assert (await store.take("first", 1.0, now_us=now)).wait_us == permits.take(state, policy, "first", 1, now)[
            1
        ].wait_us
        for what, holder, span_us, passed_us in history:
            now += passed_us
            if what == "take":
                state, grant = permits.take(state, policy, holder, span_us, now)
                assert await store.take(holder, span_us / 1e6, now_us=now) == grant
            else:
                state = permits.free(state, holder, now + span_us)
                await store.free(holder, now + span_us)
        await store.close()

    runner.run(replay())


def test_oracle_locks_the_row() -> None:
    assert str(locked_row("bank").compile(dialect=oracle.dialect())).endswith("FOR UPDATE")


async def test_a_decision_on_postgresql_is_two_round_trips(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BEGIN and COMMIT are in them: a slow database must answer all of it in time."""
    shared = await database(postgres_url)
    store = SqlPermitStore(shared, "bank", NO_PACE, longest_hold=0.0, timeout=10.0)
    await store.take("first", 0.0)
    assert shared.async_engine is not None
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    async def noted(raw: Raw, calls: Calls) -> list[Rows]:
        sent.append(" ".join(statement.name.rpartition("_")[2] for statement, _ in calls))
        return await execute_pipeline(raw, calls)

    sa.event.listen(shared.async_engine.sync_engine, "before_cursor_execute", note)
    monkeypatch.setattr(pipeline, "execute_pipeline", noted)
    await store.take("second", AN_HOUR)
    await store.close()
    assert sent == ["begin row", "update commit"]


@pytest.mark.parametrize("state", ["new", None])
async def test_the_clock_on_postgresql_is_read_after_the_wait_for_the_lock(
    postgres_url: str, state: str | None
) -> None:
    """A clock that was read before the lock would grant a permit twice: to the holder of the lock, and to the caller
    that waited."""
    shared, other = await database(postgres_url), Database(postgres_url)
    store = SqlPermitStore(shared, "bank", NO_PACE, longest_hold=0.0, timeout=10.0)
    await store.take("first", 0.0)
    assert shared.async_engine is not None
    assert other.async_engine is not None
    async with other.async_engine.connect() as holder:
        await holder.execute(sa.select(permit_gate.c.state).with_for_update())
        waiting = asyncio.create_task(shared.flush(lambda connection: run_pipeline(connection, LOCK)))

        async def is_waiting() -> bool:
            blocked = "NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
            statement = sa.text(f"SELECT count(*) FROM pg_locks WHERE {blocked}")
            return bool((await holder.execute(statement)).scalar())

        await eventually(is_waiting)
        clock = sa.text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        released_us = (await holder.execute(clock)).scalar_one()
        if state is not None:
            await holder.execute(sa.update(permit_gate).values(state=state))
        await holder.commit()
        _, [(written, _, clock_us, _)] = await waiting
    assert state in (text_of(written), None), "what the one before wrote"
    assert whole_of(clock_us) > released_us
    await store.close()
    await other.close()


async def test_a_process_that_freezes_under_the_lock_stops_nobody(postgres_url: str) -> None:
    store = SqlPermitStore(await database(postgres_url), "bank", NO_PACE, longest_hold=0.0, timeout=10.0)
    await store.take("first", 0.0)
    frozen = Database(postgres_url)
    assert frozen.async_engine is not None
    connection = await frozen.async_engine.connect()
    await connection.run_sync(run_pipeline, LOCK)
    assert (await store.take("second", AN_HOUR)).wait_us == 0
    await store.close()
    with pytest.raises(sa.exc.DBAPIError):  # it wakes up, and its transaction is gone
        await connection.execute(sa.update(permit_gate).values(state="overwritten"))
    await connection.close()
    await frozen.close()
