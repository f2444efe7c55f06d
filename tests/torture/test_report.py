"""A run's logs become a verdict, a report and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.torture.__main__ import conclude
from tests.torture.histories import Story
from tests.torture.history import Recorder, read


def run() -> Story:
    """A run with a little of everything."""
    story = Story().fault(1, 2).acquire(1, 2, 3).send("a").sms(2, "a").task("t", 1).submit("p", "PROCESSING")
    return story.bank(2, "p").add(3, "lag", seconds=0.4).stored("policy", version=1, most=2)


@pytest.mark.parametrize(
    ("story", "status", "verdict"),
    [
        (run(), 0, "no promise was broken"),
        (run().send("b"), 1, "- **every accepted message is delivered**: b was not"),
    ],
)
def test_a_runs_logs_are_concluded(
    story: Story, status: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = len(story.records) // 2
    for name, records in (("one", story.records[:half]), ("two", story.records[half:])):
        lines = [json.dumps(record) for record in records]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, '{"at": 9.0, "kind": "cut off by a ki']))
    assert conclude(tmp_path) == status
    report = (tmp_path / "report.md").read_text()
    assert verdict in report
    assert report in capsys.readouterr().out
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_calls_are_read_as_they_were_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log.jsonl")
    first, second, _ = (recorder.invoke("slots.book", event=event) for event in "abc")
    recorder.complete(second, "refused", status=404)
    recorder.complete(first, "ok", status=200)
    recorder.close()
    calls = read(tmp_path / "log.jsonl").calls
    assert [(call.request["event"], call.outcome) for call in calls] == [
        ("a", "ok"),
        ("b", "refused"),
        ("c", "unknown"),
    ]
    assert [call.ended > call.began for call in calls] == [True] * 3
