"""The scheduler for scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate import AssignedSlot, BlockingSlots, NotFound, SlotRequest, WindowPolicy

AT = "2027-03-01T16:00:00Z"


def test_a_script_needs_no_event_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'slots.db'}"
    with BlockingSlots(url, bulk_batch=10) as slots:
        slots.configure("default", WindowPolicy(max_per_window=5, window="PT4S"))
        first = slots.assign("a", "default", AT)
        assert [slot.event_id for slot in slots.assign_many([("b", AT), ("c", AT)], "default")] == ["b", "c"]
        requests = (SlotRequest.of(f"s{n}", AT) for n in range(25))
        batches = list(slots.assign_stream(requests, "default"))
        assert [len(batch) for batch in batches] == [10, 10, 5]
        assert all(isinstance(slot, AssignedSlot) for batch in batches for slot in batch)
        assert slots.forecast("default", 1, AT).first_window is not None
        slots.cancel("b")
    with BlockingSlots(url) as slots:
        assert slots.find("a") == first._replace(existing=True)
        assert slots.policy("default").policy.max_per_window == 5
        with pytest.raises(NotFound):
            slots.find("b")
