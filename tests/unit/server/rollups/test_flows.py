"""Flows by the minute: what one process missed, the next round or another one writes; nothing is counted twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from paceline import SlotScheduler
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import EnqueueRequest
from paceline.server.flow import Flows
from paceline.server.rollups.flows import FlowRecorder, Minutes
from paceline.server.rollups.recorder import Recorder
from paceline.testing import FakeClock
from tests.models.queue_store import MemoryQueueStore
from tests.models.rollup_store import MemoryRollupStore
from tests.models.slot_store import MemorySlotStore

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)


async def test_two_processes_write_each_minute_once() -> None:
    clock = FakeClock(T)
    queues, rollups = MemoryQueueStore(clock), MemoryRollupStore(T.timestamp())
    await queues.configure(DispatchConfig(item_type="INVOICE"))

    def seconds() -> float:
        return clock.monotonic_us() / 1e6

    def process(name: str) -> tuple[FlowRecorder, Recorder]:
        recorder = Recorder(rollups, clock=seconds, wall=T.timestamp, process=name)
        flows = Flows(queues, SlotScheduler(MemorySlotStore(clock)), clock=seconds)
        return FlowRecorder(queues, flows, recorder), recorder

    processes = [process("one"), process("two")]
    for minute in range(6):
        wanted = [EnqueueRequest.of("INVOICE", f"{minute}-{n}", {}) for n in range(minute + 1)]
        await queues.enqueue(wanted)
        claimed = await queues.claim("INVOICE", minute + 1, timedelta(0))
        await queues.touch([item.claim for item in claimed.items], begins=True)
        clock.advance(60)
        rollups.time += 60
        # The second process is away for three minutes, and writes them afterwards.
        for recording, recorder in processes[: 1 if 1 <= minute <= 3 else 2]:
            await recording.record()
            recorder.end_minute(max(recorder.unwritten(60)))
            await recorder.flush()
    clock.advance(20)
    rollups.time += 20
    for recording, recorder in processes:
        await recording.record()
        await recorder.flush()
    periods = await rollups.minutes("INVOICE", T)
    minutes = Minutes.of(periods, "INVOICE", rollups.time)
    assert minutes.lines["arrived"][-7:-1] == [1, 2, 3, 4, 5, 6]
    assert minutes.lines["begun"][-7:-1] == [1, 2, 3, 4, 5, 6]
    assert minutes.peak == 6
    assert minutes.lines["arrived"][0] is None
    assert minutes.start == T.timestamp() - 86_400 + 360
