"""One process of callers: `python -m tests.contracts.slot_process URL`.

Reads a task per line from standard input, all of whose calls it makes at once, and prints their answers as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from paceline.durations import from_ms
from paceline.errors import PacelineError
from paceline.slots import AssignedSlot, SlotRequest, SlotScheduler

Answer = list[Any] | None
"""The names, the starts of the windows, and the time of a slot; None for a refusal."""


def shown(slot: AssignedSlot) -> Answer:
    windows = [[window.config_name, window.window_start_ms] for window in slot.windows]
    return [windows, slot.scheduled_ms]


async def answer(slots: SlotScheduler, call: dict[str, Any]) -> Any:
    match call:
        case {"book": event_id, "names": names, "at": at}:
            try:
                return shown(await slots.assign(event_id, names, from_ms(at)))
            except PacelineError as error:
                if type(error).__name__ != "SlotsExhausted":
                    raise
                return None
        case {"book_many": events, "names": names}:
            requests = [SlotRequest(event_id, at) for event_id, at in events]
            bookings = await slots.book(requests, names)
            return [shown(booking) if isinstance(booking, AssignedSlot) else None for booking in bookings]
        case {"cancel": event_id}:
            return shown(await slots.cancel(event_id))
        case {"change": name, "fields": fields}:
            return (await slots.change(name, fields)).version
        case {"replan": name, "since": since, "direction": direction}:
            return (await slots.replan(name, since=from_ms(since), direction=direction)).moved
    raise ValueError(call)


async def main(url: str) -> None:
    async with SlotScheduler.open(url) as slots:
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            say(json.dumps(await asyncio.gather(*(answer(slots, call) for call in json.loads(line)))))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
