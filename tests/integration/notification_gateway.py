"""The SMS gateway over HTTP, in this process, on real stores; and a look into its tables."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2 as httpx
import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck
from hypothesis import strategies as st

from paceline.dispatch.stores.tables import context, queue
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.sql.engine import Database
from paceline.sql.outbox_tables import outbox
from paceline_sms.intake import Intake
from paceline_sms.items import ITEM_TYPES
from paceline_sms.settings import SmsSettings
from paceline_sms.stores.tables import notification_quota
from tests import effort

examples = hypothesis.settings(
    max_examples=effort.examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
messages = st.text(min_size=1, max_size=200).filter(lambda text: text.strip())
_users = itertools.count(1_000)
HYPOTHESIS_THREAD = ThreadPoolExecutor(1)
"""One for all tests: in a thread that it has not seen yet, Hypothesis first collects all garbage."""


def new_user() -> int:
    """A user that no other test of this process uses."""
    return next(_users)


LOGS = ("sqlite", "postgres", "kafka")
"""Where messages wait for their sender: in the outbox, on SQLite or PostgreSQL, or in Kafka beside PostgreSQL."""


def stores(request: pytest.FixtureRequest, log: str) -> dict[str, Any]:
    """Settings of a gateway on one of the `LOGS`."""
    if log == "sqlite":
        return {"database_url": f"sqlite:///{request.getfixturevalue('tmp_path') / 'gateway.db'}"}
    settings = {"database_url": request.getfixturevalue("postgres_url")}
    if log == "kafka":
        settings["kafka_bootstrap"] = request.getfixturevalue("kafka_bootstrap")
    return settings


class Gateway:
    """One service, called over ASGI, and the database behind it."""

    def __init__(self, settings: Settings, client: httpx.AsyncClient, app: Any, database: Database) -> None:
        self.settings = settings
        self.client = client
        self.app = app
        self.database = database

    @property
    def intake(self) -> Intake:
        intake: Intake = self.app.state.services.app("sms").intake
        return intake

    async def configure(self, user_id: Any, rate_limit: Any, time_window: Any) -> httpx.Response:
        body = {"userId": user_id, "rateLimit": rate_limit, "timeWindow": time_window}
        return await self.client.post("/api/config", json=body)

    async def send(self, user_id: Any, message: Any = "Hello World", key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.client.post("/api/send", json={"userId": user_id, "message": message}, headers=headers)

    async def row(self, user_id: int) -> Any:
        """The user's row; None if there is none. What Redis admitted is in it."""
        if self.intake.cached is not None:
            await self.intake.cached.rows.flush()
        query = sa.select(notification_quota).where(notification_quota.c.user_id == user_id)
        return await self.database.read(lambda connection: connection.execute(query).one_or_none())

    async def rows(self) -> list[Any]:
        query = sa.select(notification_quota).order_by(notification_quota.c.user_id)
        return await self.database.read(lambda connection: list(connection.execute(query)))

    async def waiting(self, status: str = "READY") -> list[tuple[str, str]]:
        """User and message of the items that wait, in the order of their times, and of records in the outbox."""
        q = queue.c
        of_item = sa.and_(context.c.item_type == q.item_type, context.c.item_id == q.item_id)
        items = sa.select(q.lane, context.c.context_json).join(context, of_item).order_by(q.due_at, q.item_id)
        items = items.where(q.item_type.in_(ITEM_TYPES), q.queue_status == status)
        records = sa.select(outbox.c.message_key, outbox.c.message_value).order_by(outbox.c.id)
        records = records.where(outbox.c.topic == self.settings.section(SmsSettings).topic)
        return await self.database.read(
            lambda connection: [tuple(row) for query in (items, records) for row in connection.execute(query)]
        )

    async def postponed(self) -> list[str]:
        """The messages whose time is more than a minute away."""
        later = datetime.now(UTC) + timedelta(minutes=1)
        query = sa.select(queue.c.item_id).where(queue.c.queue_status == "READY", queue.c.due_at > later)
        return await self.database.read(lambda connection: list(connection.execute(query).scalars()))

    async def set(self, user_id: int, **values: Any) -> None:
        """Changes the user's row behind the gateway's back."""
        statement = notification_quota.update().where(notification_quota.c.user_id == user_id).values(values)
        await self.database.write(lambda connection: connection.execute(statement))

    async def age(self, user_id: int, by: timedelta) -> None:
        """Lets the user's window have begun earlier."""
        row = await self.row(user_id)
        await self.set(user_id, last_refresh_time=row.last_refresh_time - by)


@asynccontextmanager
async def gateways(count: int = 1, **settings: Any) -> AsyncIterator[list[Gateway]]:
    """Services that share their stores, each with connections of its own, as processes would."""
    sms = {
        "topic": f"sms-{uuid.uuid4().hex[:12]}",
        "events_topic": f"events-{uuid.uuid4().hex[:12]}",
        "sender": "worker",
        **settings.pop("sms", {}),
    }
    loaded = Settings.load(sms=sms, **settings)
    async with AsyncExitStack() as opened:
        gateways = []
        database = Database(loaded.database_url)
        opened.push_async_callback(database.close)
        for _ in range(count):
            app = create_app(loaded)
            await opened.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app)
            client = await opened.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60)
            )
            gateways.append(Gateway(loaded, client, app, database))
        yield gateways


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[Gateway]:
    async with gateways(1, **settings) as (only,):
        yield only


async def in_this_loop(test: Any) -> None:
    """Runs a Hypothesis test whose body is a coroutine, example by example, in the running loop."""
    loop = asyncio.get_running_loop()
    inner = test.hypothesis.inner_test

    def example(*arguments: object, **named: object) -> None:
        asyncio.run_coroutine_threadsafe(inner(*arguments, **named), loop).result()

    test.hypothesis.inner_test = example
    await loop.run_in_executor(HYPOTHESIS_THREAD, test)
