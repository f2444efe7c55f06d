"""Flows by the minute: every process reads the same numbers from the queues, and the minutes outlive the items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from paceline.dispatch.meter import EVERY_SECONDS, measure_periodically
from paceline.dispatch.ports import QueueStore
from paceline.server.flow import Flow, Flows, Line
from paceline.server.rollups import model
from paceline.server.rollups.model import FLOW_SERIES, MINUTE, Counts, Key, Period
from paceline.server.rollups.recorder import Recorder

DAY_MINUTES = 1440
SETTLED_SECONDS = 10
"""Seconds after the end of a minute until its last rows are committed."""
SUMMED = ("arrived", "begun", "done", "failed")
LARGEST = ("waited", "peaks")


class Minutes(NamedTuple):
    """A day of a flow by the minute; `start` is the first minute, in seconds since 1970. None where nothing was
    measured."""

    start: int
    lines: Mapping[str, list[int | None]]

    @classmethod
    def of(cls, periods: Mapping[Period, Counts], label: str, now: float) -> Minutes:
        """The 24 hours before now, and the minute that has begun."""
        start = Period.of(MINUTE, now).start - DAY_MINUTES * MINUTE
        times = range(start, start + (DAY_MINUTES + 1) * MINUTE, MINUTE)
        return cls(
            start,
            {
                name: [periods.get(Period(MINUTE, at), {}).get(Key(series, label)) for at in times]
                for name, series in FLOW_SERIES.items()
            },
        )

    @property
    def peak(self) -> int:
        """The most that began in any sliding second of the day."""
        return max((count for count in self.lines["peaks"] if count is not None), default=0)


class FlowRecorder:
    """Writes the minutes of every queue into the rollups. Any number of processes may do so: what one of them missed,
    while it was restarted or the store was down, another one or the next round writes."""

    def __init__(
        self, queues: QueueStore, flows: Flows, recorder: Recorder, measured: Callable[[Flow], object] = lambda _: None
    ) -> None:
        self._queues = queues
        self._flows = flows
        self._recorder = recorder
        self._measured = measured
        self._written: dict[str, int] = {}

    async def record(self) -> None:
        """Records what each queue is now, and the minutes that ended since the last round."""
        for config in await self._queues.configs():
            flow = await self._flows.queue(config.item_type)
            self._measured(flow)
            self._note(flow)

    async def run(self) -> None:
        """Records until it is cancelled."""
        await measure_periodically(self.record, "the flow of work", every=EVERY_SECONDS)

    def _note(self, flow: Flow) -> None:
        for name in ("late", "unknown", "dead"):
            self._recorder.measure(FLOW_SERIES[name], flow.name, getattr(flow, name))
        self._recorder.measure(model.ITEMS_BACKLOG, flow.name, flow.waiting + flow.running + flow.unknown)
        ended = Period.of(MINUTE, flow.at.timestamp() - SETTLED_SECONDS).start
        first = -(-flow.arrived.start // MINUTE) * MINUTE
        for start in range(max(first, self._written.get(flow.name, 0)), ended, MINUTE):
            for names, combine in ((SUMMED, sum), (LARGEST, max)):
                for name in names:
                    line: Line = getattr(flow, name)
                    offset = start - line.start
                    value = combine(line.counts[offset : offset + MINUTE])
                    self._recorder.measure_minute(start, FLOW_SERIES[name], flow.name, value)
        self._written[flow.name] = ended
