"""The console's stream: parts when they change, resumed where it was left, ended with the access and the process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline.server.console.stream import ALIVE_SECONDS, Snapshot, changes, overview_snapshot
from paceline.server.http.streams import Streams
from paceline.server.shapes.console import PARTS, OverviewShown, versions_of
from paceline.server.shapes.health import Check


class Service:
    """What a stream reads, and a clock that advances by a second at every read."""

    def __init__(self) -> None:
        self.status = "UP"
        self.seconds = 0.0
        self.reads = 0
        self.may_read = True
        self.ended = asyncio.Event()

    async def read(self) -> Snapshot:
        self.reads += 1
        check = Check(name="database", status=self.status)
        at = 1_803_902_400_000
        shown = OverviewShown.of(version="", at=at, checks=[check], numbers=None, queues=[], windows=None, flow=None)
        shown.version = ".".join(versions_of(shown).values())
        return overview_snapshot(shown)

    async def is_allowed(self) -> bool:
        return self.may_read

    def clock(self) -> float:
        self.seconds += 1
        return self.seconds

    def events(self, last_id: str = "", every: float = 0) -> AsyncIterator[bytes]:
        return changes(self.read, self.is_allowed, self.ended, last_id, every=every, tick=0, clock=self.clock)


def parsed(event: bytes) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in event.decode().strip().splitlines())
    return fields | ({"data": json.loads(fields["data"])} if "data" in fields else {})


async def next_event(events: AsyncIterator[bytes], kind: str = "overview") -> dict[str, Any]:
    async with asyncio.timeout(10):
        async for event in events:
            if (fields := parsed(event)).get("event") == kind:
                return fields
    pytest.fail(f"the stream ended without an event {kind}")


async def test_a_part_is_sent_when_it_changes_and_only_then() -> None:
    service = Service()
    events = service.events()
    assert parsed(await anext(events)) == {"retry": "2000"}
    first = await next_event(events)
    assert set(first["data"]) == {"at", *PARTS}
    alive = await next_event(events, "alive")
    assert "id" not in alive
    assert service.seconds >= ALIVE_SECONDS
    service.status = "DOWN"
    second = await next_event(events)
    assert set(second["data"]) == {"at", "checks"}
    assert second["id"] != first["id"]


async def test_a_reader_that_comes_back_gets_what_changed_meanwhile() -> None:
    service = Service()
    first = await next_event(service.events())
    resumed = service.events(first["id"])
    await next_event(resumed, "alive")
    service.status = "DOWN"
    again = await next_event(service.events(first["id"]))
    assert set(again["data"]) == {"at", "checks"}
    for nonsense in ("x", "....", "é" * 64, first["id"][:5]):
        whole = await next_event(service.events(nonsense))
        assert set(whole["data"]) == {"at", *PARTS}


async def test_a_slow_reader_is_kept_alive_between_its_reads() -> None:
    service = Service()
    events = service.events(every=1000)
    await next_event(events)
    service.status = "DOWN"
    for _ in range(3):
        assert set((await next_event(events, "alive"))["data"]) == {"at"}
    assert service.reads == 1
    service.seconds += 1000
    assert set((await next_event(events))["data"]) == {"at", "checks"}


async def test_the_stream_ends_with_the_access() -> None:
    service = Service()
    events = service.events()
    await next_event(events)
    service.may_read = False
    await next_event(events, "end")
    assert [event async for event in events] == []


async def test_the_stream_ends_with_the_process() -> None:
    service, streams = Service(), Streams()
    streams.end()
    assert not streams.ended.is_set(), "no loop yet: nothing to end"
    streams.loop, service.ended = asyncio.get_running_loop(), streams.ended
    events = service.events()
    await next_event(events)
    await asyncio.to_thread(streams.end)
    async with asyncio.timeout(10):
        assert all(b"event: end" not in event for event in [event async for event in events])
