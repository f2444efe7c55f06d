"""A flow's marks in words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paceline.server.access.ports import AuditEntry
from paceline.server.flow import Flow
from paceline.server.shapes.flow import FlowShown
from paceline.slots.listing import SlotHistory

T = datetime(2027, 3, 1, 16, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "detail", "words"),
    [
        ("/admin/dispatch/A", '{"rate": "2/second"}', "rate 2/second"),
        ("/admin/dispatch/A", '{"enabled": false}', "paused"),
        ("/admin/dispatch/A", '{"enabled": true, "batchSize": 5}', "resumed, batch size 5"),
        ("/admin/rate-limit/config", '{"configName": "a", "maxDelay": null}', "no max delay"),
        ("/api/v1/slots/replan", '{"configName": "a", "direction": "spread", "dryRun": false}', "re-planned later"),
        ("/admin/dispatch/A/requeue", '{"ids": ["a", "b', 'POST /admin/dispatch/A/requeue {"ids": ["a", "b'),
    ],
)
def test_a_mark_says_in_words_what_was_changed(path: str, detail: str, words: str) -> None:
    shown = FlowShown.of_all(
        Flow.of_config("a", SlotHistory(T, {}, {}, {}, {}), 5),
        None,
        [AuditEntry(T, "ann", "POST", path, "r", 200, detail)],
    )
    assert [(mark.who, mark.what) for mark in shown.marks] == [("ann", words)]
