"""An NDJSON stream leaves the event loop to others, and ends when it is junk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message

from paceline.server.http import stream
from paceline.server.http.stream import LINES_PER_TURN, MAX_BAD_LINES, book_stream
from paceline.slots import AssignedSlot
from paceline.slots.model import BookingGroup

GOOD = b'{"eventId": "e-%d", "requestedTime": "2027-01-01T00:00:00Z"}'


class EmptyWindows:
    """Books every event at its requested time, without yielding to the event loop."""

    async def book_groups(self, groups: Sequence[BookingGroup]) -> list[list[AssignedSlot]]:
        return [
            [AssignedSlot(event_id, names[0], 1, at, at, at) for event_id, at in requests]
            for names, requests, _ in groups
        ]


async def answers(body: bytes) -> list[dict[str, Any]]:
    """The lines that a body is answered with. All of it has arrived when it is read."""
    sent: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    await book_stream(EmptyWindows(), "default", receive, send, 10_000)  # type: ignore[arg-type]
    return [json.loads(line) for line in b"".join(sent).splitlines()]


async def test_a_stream_of_junk_ends_after_a_stated_number_of_lines() -> None:
    lines = await answers(b"x\n" * 100_000)
    assert len(lines) == MAX_BAD_LINES + 1
    assert {line["error"]["field"] for line in lines[:-1]} == {"line"}
    assert lines[-1]["line"] == MAX_BAD_LINES + 1
    assert lines[-1]["error"]["type"].endswith("too-many-bad-lines")
    assert f"{MAX_BAD_LINES} before it" in lines[-1]["error"]["detail"]


async def test_good_lines_up_to_there_are_booked_and_exactly_so_many_bad_ones_are_no_reason_to_stop() -> None:
    mixed = b"".join(b"x\n" + GOOD % number + b"\n" for number in range(MAX_BAD_LINES))
    lines = await answers(mixed + GOOD % 77_777)
    assert [line["eventId"] for line in lines if "error" not in line] == [
        *(f"e-{number}" for number in range(MAX_BAD_LINES)),
        "e-77777",
    ]
    lines = await answers(mixed + b"x\n" + GOOD % 77_777)
    assert [line.get("line") for line in lines[-2:]] == [None, 2 * MAX_BAD_LINES + 1]
    assert len(lines) == 2 * MAX_BAD_LINES + 1


@pytest.mark.parametrize("body", [b"x\n" * 100_000, b"\n" * 100_000, b"\n".join(GOOD % n for n in range(5_000))])
async def test_others_have_their_turn_while_a_stream_is_read_and_answered(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in lines between two turns of another task: a slow machine changes nothing."""
    done = 0
    for name in ("_line", "_answer"):
        original = getattr(stream, name)

        def counted(*arguments: Any, original: Any = original) -> Any:
            nonlocal done
            done += 1
            return original(*arguments)

        monkeypatch.setattr(stream, name, counted)
    between: list[int] = []

    async def other() -> None:
        nonlocal done
        while True:
            between.append(done)
            done = 0
            await asyncio.sleep(0)

    another = asyncio.create_task(other())
    await answers(body)
    another.cancel()
    # Reading and answering may both have had a turn meanwhile.
    assert max(between) <= 2 * LINES_PER_TURN
    assert len(between) > len(body.split(b"\n")[:MAX_BAD_LINES]) / LINES_PER_TURN
