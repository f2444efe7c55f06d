"""The table of what tasks do on Temporal leaves no feature out, and invents none."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import paceline
from paceline import CurrentTask, Tasks

PAGE = Path(__file__).parents[2] / "docs/howto/tasks.md"
BELOW = {
    *(
        "queue",
        "define",
        "enqueue_item",
        "enqueue_calls",
        "queue_next",
        "lend",
        "borrowed",
        "close",
        "declare",
        "domains",
    ),
    *("declare", "item_types", "url", "token", "run", "running"),
}
"""What tasks stand on, whatever runs them."""
ENQUEUE = {"task"}


def features() -> set[str]:
    """Every option, method and outcome that might do something else on another engine."""
    options = {*inspect.signature(Tasks).parameters, *inspect.signature(Tasks.task).parameters} - {"self", "function"}
    methods = {name for name in vars(Tasks) if not name.startswith("_")}
    raised = {"Snooze", "Discard", "Retry", "OutcomeUnknown"}
    assert raised <= set(paceline.__all__)
    known = {"current_task", "progress", "show", "stopping", "cancelled", "in_doubt"}
    assert all(hasattr(CurrentTask, name) for name in ("progress", "stopping", "cancelled"))
    return (options | methods | raised | known) - BELOW - ENQUEUE


def test_the_table_of_tasks_on_temporal_names_every_feature() -> None:
    section = PAGE.read_text("utf-8").partition("\n## On Temporal\n")[2]
    rows = re.findall(r"^\| (`.*?) \| (.+) \|$", section, re.MULTILINE)
    named = [name for row, _ in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(features())
