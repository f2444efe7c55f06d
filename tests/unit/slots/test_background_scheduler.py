"""The scheduler for scripts."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from inspect import signature
from pathlib import Path

import pytest

from paceline import AssignedSlot, BlockingSlotScheduler, NotFound, SlotRequest, SlotScheduler, WindowPolicy

AT = "2027-03-01T16:00:00Z"


def test_a_script_needs_no_event_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'slots.db'}"
    with BlockingSlotScheduler(url, bulk_batch=10) as slots:
        slots.configure("default", WindowPolicy(max_per_window=5, window="PT4S"))
        first = slots.assign("a", "default", AT)
        assert [slot.event_id for slot in slots.assign_many([("b", AT), ("c", AT)], "default")] == ["b", "c"]
        requests = (SlotRequest.of(f"s{n}", AT) for n in range(25))
        batches = list(slots.assign_stream(requests, "default"))
        assert [len(batch) for batch in batches] == [10, 10, 5]
        assert all(isinstance(slot, AssignedSlot) for batch in batches for slot in batch)
        assert slots.forecast("default", 1, AT).first_window is not None
        slots.cancel("b")
    with BlockingSlotScheduler(url) as slots:
        assert slots.find("a") == first._replace(existing=True)
        assert slots.policy("default").policy.max_per_window == 5
        with pytest.raises(NotFound):
            slots.find("b")


def test_requests_are_read_in_the_thread_of_the_caller(tmp_path: Path) -> None:
    """A connection of sqlite3's may be used in no other."""
    connection = sqlite3.connect(":memory:")

    def rows() -> Iterator[str]:
        return (f"{event}" for (event,) in connection.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3"))

    with closing(connection), BlockingSlotScheduler(f"sqlite:///{tmp_path / 'slots.db'}", bulk_batch=2) as slots:
        slots.configure("default", WindowPolicy(max_per_window=5, window="PT4S"))
        assert len(slots.assign_many(((row, AT) for row in rows()), "default")) == 3
        batches = list(slots.assign_stream((SlotRequest.of(row, AT) for row in rows()), "default"))
        assert [len(batch) for batch in batches] == [2, 1]


def test_threads_share_it(tmp_path: Path) -> None:
    with BlockingSlotScheduler(f"sqlite:///{tmp_path / 'slots.db'}") as slots:
        slots.configure("default", WindowPolicy(max_per_window=5, window="PT4S"))
        threads = [threading.Thread(target=slots.assign, args=(f"e{n}", "default", AT)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [slots.find(f"e{n}").event_id for n in range(4)] == ["e0", "e1", "e2", "e3"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_and_its_parent_book_at_once(tmp_path: Path) -> None:
    """As workers do that are forked after the application was loaded."""
    url = f"sqlite:///{tmp_path / 'slots.db'}"
    slots = BlockingSlotScheduler(url)
    slots.configure("default", WindowPolicy(max_per_window=5, window="PT4S"))
    slots.assign("first", "default", AT)
    child = os.fork()
    if child == 0:
        # Nothing may be raised here: pytest would continue in the child as well.
        try:
            signal.alarm(30)  # ends a child that hangs
            booked = [slots.assign(f"child-{n}", "default", AT).event_id for n in range(20)]
            slots.close()
            os._exit(0 if booked == [f"child-{n}" for n in range(20)] else 1)
        finally:
            os._exit(2)
    for n in range(20):
        assert slots.assign(f"parent-{n}", "default", AT).event_id == f"parent-{n}"
    assert os.waitpid(child, 0)[1] == 0
    slots.close()
    with BlockingSlotScheduler(url) as fresh:
        for who in ("child", "parent"):
            for n in range(20):
                assert fresh.find(f"{who}-{n}").existing


def test_it_has_all_methods_of_the_asynchronous_form(tmp_path: Path) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(SlotScheduler) == public(BlockingSlotScheduler)
    for name in sorted(public(SlotScheduler) - {"open"}):
        parameters = [signature(getattr(kind, name)).parameters for kind in (SlotScheduler, BlockingSlotScheduler)]
        assert list(parameters[0]) == list(parameters[1]), name
    with BlockingSlotScheduler.open(f"sqlite:///{tmp_path / 'slots.db'}") as slots:
        slots.ensure("default", WindowPolicy(1, "PT4S"))
        slots.change("default", {"max_per_window": 2})
        slots.assign("a", "default", "2040-03-01T16:00:00Z")
        assert [version.version for version in slots.history("default")] == [2, 1]
        assert slots.count() == 1
        assert slots.explain("a").steps == ()
        assert slots.replan("default").moved == 0
        slots.flush()
