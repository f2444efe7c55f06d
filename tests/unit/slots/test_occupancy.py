"""Runs of full windows, and which windows are taken."""

from __future__ import annotations

from paceline.slots.occupancy import FullRun, RunChanges, joined_runs, split_run


def test_runs_join_on_both_sides() -> None:
    stored = [FullRun(0, 10), FullRun(20, 30), FullRun(40, 50)]
    changes = joined_runs(
        [FullRun(10, 20), FullRun(30, 40)],
        ending_at=lambda at: next((run for run in stored if run.resume_ms == at), None),
        starting_at=lambda at: next((run for run in stored if run.start_ms == at), None),
    )
    assert changes == RunChanges([0, 20, 40], [FullRun(0, 50)])


def test_a_run_splits_where_room_appears() -> None:
    assert split_run(FullRun(0, 30), 10, 20) == [FullRun(0, 10), FullRun(20, 30)]
    assert split_run(FullRun(0, 30), 0, 10) == [FullRun(10, 30)]
    assert split_run(FullRun(0, 30), 20, 30) == [FullRun(0, 20)]
    assert split_run(FullRun(0, 10), 0, 10) == []
