"""What subscribers are told of a slot that a re-plan moved."""

from __future__ import annotations

import json
from typing import Any

from paceline.durations import format_instant, from_ms
from paceline.slots.carriers import SlotMove
from paceline.slots.model import SlotWindow


def record_of(move: SlotMove) -> str:
    """The record of a move for subscribers."""
    record: dict[str, Any] = {
        "eventId": move.slot.event_id,
        "configName": move.slot.config_name,
        "before": _instant(move.slot.scheduled_ms),
        "scheduledTime": _instant(move.scheduled_ms),
        "windowStart": _instant(move.window_start_ms),
        "owner": move.slot.owner,
    }
    if move.windows:
        record["windows"] = [_window(window) for window in move.windows]
    return json.dumps(record)


def _window(window: SlotWindow) -> dict[str, Any]:
    name, version, start_ms = window
    return {"configName": name, "configVersion": version, "windowStart": _instant(start_ms)}


def _instant(at_ms: int) -> str:
    return format_instant(from_ms(at_ms))
