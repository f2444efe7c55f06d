"""The loop of a log's readers: records are handed on until they are done, whatever the log or the work does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from paceline import messaging
from paceline.errors import BrokerUnavailable, StoreUnavailable
from paceline.messaging import LogEntry, Record, leave, process_until_stopped, read_until_stopped, wait_for_stop
from paceline.testing import eventually


def entries(*names: str) -> list[LogEntry]:
    return [LogEntry(Record("t", name, name), 0, number) for number, name in enumerate(names)]


class Source:
    """Delivers each entry once, and can fail."""

    def __init__(self, *batches: list[LogEntry]) -> None:
        self.batches = list(batches)
        self.received: list[int] = []
        self.committed: list[str] = []
        self.revoked: set[str] = set()
        self.closed = 0
        self.interrupted = asyncio.Event()
        self.trouble: Exception | None = None
        self.close_trouble: Exception | None = None

    async def receive(self, max_records: int, wait: float) -> list[LogEntry]:
        self.received.append(max_records)
        if self.trouble is not None:
            raise self.trouble
        if not max_records:
            return []
        if self.batches:
            return self.batches.pop(0)
        await self.interrupted.wait()
        return []

    def interrupt(self) -> None:
        self.interrupted.set()

    def holds(self, entry: LogEntry) -> bool:
        return entry.record.key not in self.revoked

    async def commit(self, done: Sequence[LogEntry]) -> None:
        self.committed += [entry.record.key for entry in done]

    async def close(self) -> None:
        self.closed += 1
        if self.close_trouble is not None:
            raise self.close_trouble


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(messaging, "LONGEST_PAUSE", 0.002)


async def run(source: Source, work: Callable[[Sequence[LogEntry]], Awaitable[None]], until: Callable[[], bool]) -> None:
    """Processes until the condition holds, then stops."""
    stop = asyncio.Event()

    async def join() -> Source:
        return source

    running = asyncio.create_task(process_until_stopped(join, work, stop, batch=5))
    await eventually(until)
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_records_are_committed_when_their_work_is_done_and_a_stop_ends_the_wait() -> None:
    source, done = Source(entries("a", "b"), entries("c")), list[str]()

    async def work(batch: Sequence[LogEntry]) -> None:
        assert source.committed == done, "what came before"
        done.extend(entry.record.key for entry in batch)

    await run(source, work, lambda: done == ["a", "b", "c"])
    assert source.committed == ["a", "b", "c"]
    assert source.received[0] == 5
    assert source.closed == 1


async def test_work_that_fails_gets_the_same_records_again_without_those_that_are_anothers_now() -> None:
    source, seen = Source(entries("a", "b")), list[list[str]]()

    async def work(batch: Sequence[LogEntry]) -> None:
        seen.append([entry.record.key for entry in batch])
        if len(seen) == 1:
            source.revoked = {"a"}
            raise StoreUnavailable("down")

    await run(source, work, lambda: source.committed == ["b"])
    assert seen == [["a", "b"], ["b"]]
    assert source.received[:2] == [5, 0], "a heartbeat, and no more records meanwhile"


async def test_work_whose_records_are_all_anothers_goes_on_with_new_ones() -> None:
    source, seen = Source(entries("a"), entries("b")), list[str]()

    async def work(batch: Sequence[LogEntry]) -> None:
        seen.append(batch[0].record.key)
        if seen == ["a"]:
            source.revoked = {"a"}
            raise StoreUnavailable("down")

    await run(source, work, lambda: source.committed == ["b"])
    assert seen == ["a", "b"]


async def test_a_log_that_can_not_be_joined_is_tried_again_and_other_errors_end_the_loop() -> None:
    stop, attempts, source = asyncio.Event(), list[int](), Source()

    async def join() -> Source:
        attempts.append(1)
        if len(attempts) < 4:
            raise BrokerUnavailable("not yet")
        return source

    async def step(joined: object) -> None:
        assert joined is source
        raise RuntimeError("a mistake in the work")

    with pytest.raises(RuntimeError):
        await read_until_stopped(join, step, stop)
    assert len(attempts) == 4
    assert source.closed == 1


async def test_a_stop_before_the_start_joins_nothing() -> None:
    stop = asyncio.Event()
    stop.set()

    async def never(*_: object) -> Source:
        raise AssertionError

    await read_until_stopped(never, never, stop)  # type: ignore[arg-type]


async def test_leaving_a_log_that_does_not_answer_is_no_error() -> None:
    source = Source()
    source.close_trouble = BrokerUnavailable("down")
    await leave(source)
    source.close_trouble = RuntimeError("a mistake")
    with pytest.raises(RuntimeError):
        await leave(source)


async def test_waiting_for_a_stop_says_whether_it_came() -> None:
    stop = asyncio.Event()
    assert not await wait_for_stop(stop, 0.001)
    stop.set()
    assert await wait_for_stop(stop, 60)
