"""Links fail as configured; the plan of faults depends on the seed alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from paceline.testing import eventually
from tests.torture.faults import QUIET, plan_faults
from tests.torture.links import Link


class Echo:
    """A server that records what it gets, and sends it back."""

    def __init__(self) -> None:
        self.received = b""
        self.open = 0
        self.arrived = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(ConnectionResetError):
            while data := await reader.read(100):
                async with self.arrived:
                    self.received += data
                    self.arrived.notify_all()
                writer.write(data)
        writer.close()
        self.open -= 1

    async def until(self, data: bytes) -> None:
        async with self.arrived, asyncio.timeout(10):
            await self.arrived.wait_for(lambda: self.received == data)


@asynccontextmanager
async def linked(*, drops_late: bool = False) -> AsyncIterator[tuple[Link, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    link = await Link("test", drops_late=drops_late).open(server.sockets[0].getsockname()[1])
    yield link, echo
    await link.close()
    server.close()
    await eventually(lambda: echo.open == 0, every=0)


async def connected(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which something has passed already."""
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"hello ")
    assert await reader.readexactly(6) == b"hello "
    return reader, writer


async def test_slow_data_arrives_in_order() -> None:
    async with linked() as (link, echo):
        reader, writer = await connected(link)
        link.slow(0.02)
        writer.write(b"one ")
        link.heal()
        writer.write(b"two")
        assert await reader.readexactly(7) == b"one two"
        assert echo.received == b"hello one two"
        writer.close()


@pytest.mark.parametrize("drops_late", [False, True])
async def test_silence_holds_data_back_until_the_link_heals(drops_late: bool) -> None:
    async with linked(drops_late=drops_late) as (link, echo):
        reader, writer = await connected(link)
        link.silence()
        writer.write(b"late")
        await writer.drain()
        _, new = await asyncio.open_connection("127.0.0.1", link.port)
        assert echo.received == b"hello "
        link.heal()
        assert await reader.readexactly(4) == b"late"
        writer.close()
        new.close()


async def test_a_silent_link_can_drop_what_nobody_waits_for() -> None:
    async with linked(drops_late=True) as (link, echo):
        _, writer = await connected(link)
        link.silence()
        writer.write(b"late")
        writer.close()
        await writer.wait_closed()
        link.heal()
        _, writer = await connected(link)
        assert echo.received == b"hello hello "
        writer.close()


async def test_a_cut_resets_callers_and_lets_arrive_what_is_on_its_way() -> None:
    async with linked() as (link, echo):
        reader, writer = await connected(link)
        link.slow(0.02)
        writer.write(b"on its way")
        await eventually(lambda: next(iter(link._connections)).caller._line, every=0)
        link.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await echo.until(b"hello on its way")
        reader, new = await asyncio.open_connection("127.0.0.1", link.port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        link.heal()
        _, again = await connected(link)
        for stream in (writer, new, again):
            stream.close()


def test_a_seed_is_a_plan() -> None:
    targets = (["service", "worker"], ["postgres"], ["service>postgres", "worker>postgres"])
    plan = plan_faults(Random(7), 600.0, *targets)
    assert plan == plan_faults(Random(7), 600.0, *targets)
    assert plan != plan_faults(Random(8), 600.0, *targets)
    assert {fault.what for fault in plan} == {"kill", "freeze", "slow", "silence", "cut"}
    free_at: dict[str, float] = {}
    for fault in plan:
        assert QUIET <= fault.at <= fault.at + fault.seconds <= 600.0
        assert free_at.get(fault.target, 0.0) < fault.at, "one fault at a time"
        free_at[fault.target] = fault.at + fault.seconds
