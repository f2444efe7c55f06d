"""Slots, the queue and tasks of a service, called over HTTP: the same results and errors as beside its database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from paceline import (
    ConfigurationError,
    Conflict,
    DispatchQueue,
    InvalidInput,
    NotFound,
    SlotRequest,
    SlotScheduler,
    SlotsExhausted,
    StoreUnavailable,
    TaskFailed,
    Tasks,
    WindowPolicy,
)
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.remote import API as QUEUE
from paceline.errors import StaleVersion
from paceline.slots.listing import SlotFilter
from paceline.slots.model import BookingGroup
from paceline.slots.remote import API as SLOTS
from tests.acceptance.service import Service, run

AT = "2030-03-01T16:00:00Z"
POLICY = WindowPolicy(
    4,
    "PT4S",
    "even",
    {"zone": "Europe/Berlin", "holidays": "DE"},
    "PT1H",
    curve=[{"days": ["FRI"], "from": "08:00", "to": "18:00", "max": 3}],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with Service(folder) as service:
        yield service.url


@pytest.fixture
def database(url: str, folder: Path) -> str:
    """The service's own."""
    return f"sqlite:///{folder / 'paceline.db'}"


@pytest.fixture
async def slots(url: str) -> AsyncIterator[SlotScheduler]:
    async with SlotScheduler.open(url) as opened:
        yield opened


@pytest.fixture
async def queue(url: str) -> AsyncIterator[DispatchQueue]:
    async with DispatchQueue.open(url) as opened:
        yield opened


class Both:
    """Calls a method here and there, for results that must be equal."""

    def __init__(self, remote: Any, direct: Any) -> None:
        self._remote, self._direct = remote, direct
        self.called: set[str] = set()

    async def same(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.called.add(method)
        remote = await getattr(self._remote, method)(*args, **kwargs)
        assert remote == await getattr(self._direct, method)(*args, **kwargs)
        return remote

    async def remote(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.called.add(method)
        return await getattr(self._remote, method)(*args, **kwargs)


async def test_each_method_of_slots_gives_what_it_gives_beside_the_database(
    slots: SlotScheduler, database: str
) -> None:
    async with SlotScheduler.open(database) as direct:
        both = Both(slots, direct)
        await both.remote("configure", "shaped", POLICY)
        assert (await both.same("policy", "shaped")).policy == POLICY
        assert (await both.remote("ensure", "shaped", WindowPolicy(1, "PT1S"))).policy == POLICY
        changed = await both.remote("change", "shaped", {"max_per_window": 5}, if_version=[1])
        assert (changed.version, changed.policy.max_per_window) == (2, 5)
        await both.same("history", "shaped")
        await both.same("configs")
        await both.same("check_configs", ["shaped", "default"])
        slot = await both.remote("assign", "e-1", "shaped", AT)
        assert not slot.existing
        assert (await both.same("assign", "e-1", "shaped", AT)).existing
        await both.same("find", "e-1")
        joint = await both.remote("assign", "e-2", ["shaped", "default"], datetime(2030, 3, 1, 16, tzinfo=UTC))
        assert joint.config_names == ("shaped", "default")
        groups = [BookingGroup(("default",), [SlotRequest.of("e-3", AT)]), BookingGroup(("shaped",), [])]
        await both.remote("book_groups", groups)
        await both.same("book_groups", groups)
        await both.same("page", SlotFilter.of("shaped"), limit=1)
        await both.same("page", sort="-scheduledTime")
        await both.same("count", SlotFilter.of(since="2030-01-01T00:00:00Z", status="BOOKED"))
        await both.same("beginning", "e-")
        await both.same("explain", "e-2")
        await both.same("preview", "shaped", {"max_per_window": 1}, if_version=[2])
        await both.same("heat_map", "default", 1)
        forecast = await both.same("forecast", "shaped", 100, AT, changes={"max_per_window": 50})
        assert forecast.placed == 100
        await both.same("forecast", ["shaped", "default"], 5, AT)
        assert (await both.same("replan", "shaped", dry_run=True)).dry_run
        cancelled = await both.remote("cancel", "e-1", reason="a test")
        assert cancelled.event_id == "e-1"
        assert (await both.same("page", SlotFilter.of(status="CANCELLED")))[0][0].actor == "anyone"
        await both.remote("prune", datetime.now(UTC) - timedelta(days=1))
        assert both.called == set(SLOTS.methods)


async def test_each_method_of_the_queue_gives_what_it_gives_beside_the_database(
    queue: DispatchQueue, database: str
) -> None:
    async with DispatchQueue.open(database) as direct:
        both = Both(queue, direct)
        config = await both.remote("configure", "MAIL", concurrency=3)
        assert config == await both.same("define", config) == await both.same("declare", config)
        for _ in range(2):
            queued = await queue.enqueue("MAIL", "m-1", context={"to": "ä"}, execute_at=AT, lane="acme", priority=1)
        assert queued.existing
        await queue.enqueue_many("MAIL", ((f"m-{n}", n, None) for n in range(2, 5)))
        requests = [EnqueueRequest.of("MAIL", "m-5", execute_at=AT)]
        await both.remote("enqueue_requests", requests)
        await both.same("enqueue_requests", requests)
        await both.remote("enqueue_group", EnqueueRequest.of("MAIL", "m-6", execute_at=AT), requests)
        await both.same("stats", "MAIL", now=datetime.now(UTC))
        for method in ("config", "list", "count", "error_groups", "lanes", "audit"):
            await both.same(method, "MAIL")
        assert [item.item_id for item in await both.same("list", "MAIL", prefix="m-", since=AT)] == [
            "m-1",
            "m-5",
            "m-6",
        ]
        await both.same("configs")
        await both.same("workers")
        assert "MAIL" in await both.same("unserved")
        await both.same("progress_of", "MAIL", ["m-1"])
        assert (await both.same("find", "MAIL", "m-1")).lane == "acme"
        assert (await both.same("show", "MAIL", "m-1")).context == {"to": "ä"}
        await both.same("preview", "MAIL", "cancel", lane="acme")
        assert await both.remote("reschedule", "MAIL", ["m-1"], priority=9) == 1
        assert await both.remote("cancel", "MAIL", lane="acme") == 1
        assert await both.remote("requeue", "MAIL") == await both.remote("discard", "MAIL") == 0
        with pytest.raises(Conflict):
            await both.remote("resolve", "MAIL", ["m-2"], "done")
        assert not (await both.remote("pause", "MAIL")).enabled
        assert (await both.remote("resume", "MAIL")).enabled
        await both.remote("prune", datetime.now(UTC) - timedelta(days=1))
        assert both.called == set(QUEUE.methods)


async def test_calls_made_at_once_share_requests(slots: SlotScheduler) -> None:
    await slots.configure("many", WindowPolicy(1000, "PT1S"))
    booked = await asyncio.gather(*(slots.assign(f"many-{n}", "many", AT) for n in range(2500)))
    assert len({slot.scheduled_ms for slot in booked}) > 100
    again = await slots.assign_many([(f"many-{n}", AT) for n in range(2500)], "many")
    assert [slot._replace(existing=False) for slot in again] == [slot._replace(existing=False) for slot in booked]


async def test_errors_are_those_of_the_library(slots: SlotScheduler, queue: DispatchQueue) -> None:
    with pytest.raises(NotFound, match="none"):
        await slots.policy("none")
    with pytest.raises(InvalidInput, match="requested_time"):
        await slots.assign("e", "default", "soon")
    with pytest.raises(StaleVersion) as stale:
        await slots.change("default", {"max_per_window": 7}, if_version=[99])
    assert stale.value.active == 1
    await slots.configure("short", WindowPolicy(1, "PT1S", max_delay="PT0S"))
    await slots.assign("short-1", "short", AT)
    with pytest.raises(SlotsExhausted) as exhausted:
        await slots.assign("short-2", "short", AT)
    assert exhausted.value.earliest == datetime(2030, 3, 1, 16, 0, 1, tzinfo=UTC)
    with pytest.raises(NotFound, match="NOBODY"):
        await queue.enqueue("NOBODY", "1")
    await queue.configure("MAIL")
    with pytest.raises(InvalidInput, match="context"):
        await queue.enqueue("MAIL", "1", context=object())
    with pytest.raises(InvalidInput, match=r"connection.*database's own URL"):
        await queue.enqueue("MAIL", "1", connection=object())
    with pytest.raises(ConfigurationError, match=r"reconcile.*database's own URL"):
        await slots.reconcile(lambda _: None, before=datetime.now(UTC))  # type: ignore[arg-type,return-value]


async def test_a_call_of_wrong_types_is_an_error_of_its_own(url: str) -> None:
    """As another program might send it: the client here can't."""
    calls = [
        {"method": "enqueue_requests", "arguments": {"requests": [5]}},
        {"method": "enqueue_requests", "arguments": {"requests": None}},
        {"method": "define", "arguments": {"config": "MAIL"}},
        {"method": "define", "arguments": {}},
    ]
    looks = [
        {"method": "heat_map", "arguments": {"config_name": "default", "days": "seven"}},
        {"method": "page", "arguments": {"limit": None}},
        {"method": "explain", "arguments": {"event_id": ["e-1"]}},
        {"method": "configs", "arguments": {}},
    ]
    async with httpx.AsyncClient(base_url=url) as http:
        for path, target, sent in (("submit", "queue", calls), ("look", "slots", looks)):
            answer = await http.post(f"/api/v1/remote/{path}", json={"target": target, "calls": sent})
            assert answer.status_code == 200, answer.text
            errors = [result.get("error", {}).get("~") for result in answer.json()["results"]]
            assert errors == [None if call["method"] == "configs" else "InvalidInput" for call in sent]


async def test_what_belongs_to_an_application_is_not_for_strangers(slots: SlotScheduler) -> None:
    with pytest.raises(InvalidInput, match="owner"):
        await slots.assign_many([("e", AT)], "default", owner="payments")
    with pytest.raises(InvalidInput, match="owner"):
        await slots.cancel("e", owner="payments")


async def test_tasks_are_queued_and_looked_at_over_http_and_run_beside_the_database(url: str, database: str) -> None:
    far, near = Tasks(url), Tasks(database)

    def define(tasks: Tasks) -> Any:
        @tasks.task(retries=0, priority=2)
        async def halve(number: int) -> int:
            if number % 2:
                raise ValueError("odd")
            return number // 2

        return halve

    halve, _ = define(far), define(near)
    with pytest.raises(ConfigurationError, match="database's own"):
        async with far.running():
            pass
    async with far, near, near.running():
        await halve.options(key="even").enqueue(8)
        assert await halve.result("even", timeout=20) == 4
        await halve.options(key="odd").enqueue(7)
        with pytest.raises(TaskFailed, match="odd"):
            await halve.result("odd", timeout=20)
        assert (await halve.show("odd")).attempts[0].traceback
        key = await far.batch([halve.call(2), halve.call(4)], then=halve)
        assert (await halve.show(f"{key}:0")).item.priority == 2


async def test_a_token_lets_in_to_what_it_permits(tmp_path: Path) -> None:
    made = {
        scope: json.loads(run(tmp_path, "tokens", "create", scope, "--scope", scope, "--json").stdout)["token"]
        for scope in ("read", "assign", "admin")
    }
    with Service(tmp_path) as service:
        async with SlotScheduler.open(service.url, token=made["read"]) as reader:
            assert (await reader.configs())[0].name == "default"
            with pytest.raises(ConfigurationError, match="assign"):
                await reader.assign("e", "default", AT)
        async with SlotScheduler.open(service.url, token=made["assign"]) as booker:
            assert (await booker.assign("e", "default", AT)).config_name == "default"
            with pytest.raises(ConfigurationError, match="admin"):
                await booker.change("default", {"max_per_window": 7})
        async with DispatchQueue.open(service.url, token=made["assign"]) as producer:
            with pytest.raises(InvalidInput, match="application's"):
                await producer.enqueue("PAYMENT", "p-1", context={"amount": "1.00"})
            await Tasks(service.url, token=made["assign"]).task(mail).enqueue("Ada")
            with pytest.raises(ConfigurationError, match="read"):
                await producer.find("MAIL", "m-1")
        async with SlotScheduler.open(service.url, token=made["admin"]) as operator:
            await operator.change("default", {"max_per_window": 7})


async def mail(_to: str) -> None:
    """A task."""


async def test_a_service_that_is_away_is_said_to_be(unused_tcp_port: int) -> None:
    async with SlotScheduler.open(f"http://127.0.0.1:{unused_tcp_port}") as slots:
        with pytest.raises(StoreUnavailable, match="can't be reached"):
            await slots.change("default", {"max_per_window": 7})


async def test_options_of_the_service_are_its_own() -> None:
    with pytest.raises(ConfigurationError, match="cache_ttl"):
        async with SlotScheduler.open("https://paceline.internal", cache_ttl=1):
            pass
    with pytest.raises(ConfigurationError, match="encryption_keys"):
        async with DispatchQueue.open("https://paceline.internal", encryption_keys=["a"]):
            pass
    with pytest.raises(ConfigurationError, match="token"):
        async with SlotScheduler.open("memory://", token="pl_secret"):
            pass
