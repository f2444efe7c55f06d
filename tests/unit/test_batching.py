"""Group commit: which calls share a batch, and which call gets which error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from paceline.batching import Batcher


class RecordingFlush:
    """Carries each batch only when the test opens the gate."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)

    async def __call__(self, batch: Sequence[int]) -> list[int | BaseException]:
        self.batches.append(list(batch))
        await self.gate.acquire()
        return [ValueError(str(work)) if work < 0 else work * 10 for work in batch]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_callers_who_arrive_in_flight_ride_in_the_next_batch() -> None:
    flush = RecordingFlush()
    batcher: Batcher[int, int] = Batcher(flush)
    first = batcher.submit(1)
    await turns()
    rest = [batcher.submit(n) for n in (2, 3, 4)]
    await turns()
    assert flush.batches == [[1]]
    flush.gate.release()
    flush.gate.release()
    assert await asyncio.gather(first, *rest) == [10, 20, 30, 40]
    assert flush.batches == [[1], [2, 3, 4]]


async def test_a_caller_has_its_answer_while_the_next_batch_is_in_flight() -> None:
    """The next batch begins at once; a caller that was answered continues meanwhile, and queues behind those that
    wait."""
    flush = RecordingFlush()
    batcher: Batcher[int, int] = Batcher(flush, max_batch=2)
    answered: list[int] = []

    async def call(work: int) -> None:
        answered.append(await batcher.submit(work))
        await batcher.submit(work + 100)

    calls = [asyncio.create_task(call(work)) for work in (1, 2, 3, 4, 5)]
    await turns()
    flush.gate.release()
    await turns()
    assert (answered, flush.batches) == ([10, 20], [[1, 2], [3, 4]])
    for _ in range(4):
        flush.gate.release()
        await turns()
    assert all(call.done() for call in calls)
    assert flush.batches == [[1, 2], [3, 4], [5, 101], [102, 103], [104, 105]]


async def test_a_bad_piece_fails_its_own_caller_only() -> None:
    flush = RecordingFlush()
    batcher: Batcher[int, int] = Batcher(flush)
    tasks = [batcher.submit(n) for n in (1, -2, 3)]
    flush.gate.release()
    good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
    assert (good, also_good) == (10, 30)
    assert isinstance(bad, ValueError)


async def test_a_failed_batch_fails_its_callers_and_the_next_batch_goes_on() -> None:
    failures = iter([OSError("down")])

    async def flush(batch: Sequence[int]) -> list[int]:
        if error := next(failures, None):
            raise error
        return list(batch)

    batcher: Batcher[int, int] = Batcher(flush)
    with pytest.raises(OSError, match="down"):
        await batcher.submit(1)
    assert await batcher.submit(2) == 2


async def test_a_cancelled_caller_does_not_take_the_batch_down() -> None:
    flush = RecordingFlush()
    batcher: Batcher[int, int] = Batcher(flush)
    leaver, stayer = (batcher.submit(n) for n in (1, 2))
    await turns()
    leaver.cancel()
    flush.gate.release()
    assert await stayer == 20
    assert flush.batches == [[1, 2]]


async def test_close_waits_for_accepted_work_and_takes_no_more() -> None:
    flush = RecordingFlush()
    batcher: Batcher[int, int] = Batcher(flush)
    task = batcher.submit(1)
    await turns()
    closing = asyncio.create_task(batcher.close())
    await turns()
    assert not closing.done()
    flush.gate.release()
    await closing
    assert await task == 10
    with pytest.raises(RuntimeError, match="closed"):
        await batcher.submit(2)


async def test_batches_stay_below_the_most() -> None:
    flush = RecordingFlush()
    batcher: Batcher[int, int] = Batcher(flush, max_batch=2)
    tasks = [batcher.submit(n) for n in range(5)]
    for _ in range(3):
        flush.gate.release()
    await asyncio.gather(*tasks)
    assert flush.batches == [[0, 1], [2, 3], [4]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_flush_that_answers_too_few_leaves_no_caller_waiting() -> None:
    async def forgetful(batch: Sequence[int]) -> Sequence[int | BaseException]:
        return list(batch)[:-1]

    batcher: Batcher[int, int] = Batcher(forgetful)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the flush's own mistake is logged
    callers = [batcher.submit(number) for number in range(2)]
    await asyncio.wait(callers, timeout=5)
    assert callers[0].done()
    assert callers[1].cancelled()
