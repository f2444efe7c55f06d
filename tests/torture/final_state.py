"""What the database holds when all is over, read without paceline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.torture.history import Recorder, read
from tests.torture.load.slots import CONFIG
from tests.torture.steps import ITEM_TYPE

ITEMS = """
SELECT q.item_id, q.queue_status, r.result_json,
  (SELECT count(*) FROM paceline_dispatch_audit a
   WHERE a.item_type = q.item_type AND a.item_id = q.item_id AND a.action = 'COMPLETED')
FROM paceline_dispatch_queue q LEFT JOIN paceline_dispatch_report r USING (item_type, item_id)
WHERE q.item_type = %s
"""
SLOTS = """
SELECT event_id, config_version, extract(epoch FROM window_start), extract(epoch FROM scheduled_at)
FROM paceline_slot WHERE config_name = %s
"""
WINDOWS = "SELECT extract(epoch FROM window_start), taken FROM paceline_slot_window WHERE config_name = %s"
POLICIES = "SELECT version, policy FROM paceline_slot_policy WHERE name = %s"
PAYMENTS = "SELECT payment_id, status FROM paceline_payment"
OPEN_ITEMS = (
    "SELECT count(*) FROM paceline_dispatch_queue WHERE queue_status NOT IN ('COMPLETED', 'CANCELLED', 'DEAD_LETTER')"
)
OPEN_PAYMENTS = "SELECT count(*) FROM paceline_payment WHERE status IN ('SCHEDULED', 'ACCEPTED')"


def record(url: str, recorder: Recorder) -> None:
    """Writes the rows that the checker needs to the log."""
    with psycopg.connect(url) as connection:
        for table, row in _rows(connection):
            recorder.write("final", table=table, **row)


def _rows(connection: psycopg.Connection[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for item, status, result, completions in connection.execute(ITEMS, [ITEM_TYPE]):
        epoch = json.loads(result)["epoch"] if result else None
        yield "item", {"item": item, "status": status, "epoch": epoch, "completions": completions}
    for event, version, window, scheduled in connection.execute(SLOTS, [CONFIG]):
        yield (
            "slot",
            {"event": event, "version": version, "window": float(window), "scheduled": round(float(scheduled), 3)},
        )
    for window, taken in connection.execute(WINDOWS, [CONFIG]):
        yield "window", {"window": float(window), "taken": taken}
    for version, policy in connection.execute(POLICIES, [CONFIG]):
        yield "policy", {"version": version, "most": json.loads(policy)["maxPerWindow"]}
    for payment, status in connection.execute(PAYMENTS):
        yield "payment", {"payment": payment, "status": status}


def unfinished(url: str, *logs: Path) -> str:
    """What is still to be done; empty when all is over."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        (items,) = connection.execute(OPEN_ITEMS).fetchone() or (0,)
        (payments,) = connection.execute(OPEN_PAYMENTS).fetchone() or (0,)
    history = read(*logs)
    accepted = {call.request["text"] for call in history.of("messages.send") if call.outcome == "ok"}
    messages = len(accepted - {record["text"] for record in history.records["sms"] if record["taken"]})
    parts = {"items": items, "payments": payments, "messages": messages}
    return ", ".join(f"{count} {name}" for name, count in parts.items() if count)
