"""What the check reports of a test that failed and then passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.flaky import KNOWN, causes, report

ROOT = Path(__file__).parents[2]


def test_a_known_one_is_named_with_its_cause_whatever_its_parameters() -> None:
    known = {"tests/a.py::test_one": "the moon"}
    assert report({"tests/a.py::test_one[x]", "tests/a.py::test_one"}, known) == [
        "known to be flaky: tests/a.py::test_one: the moon",
        "known to be flaky: tests/a.py::test_one[x]: the moon",
    ]


def test_an_unknown_one_is_named_loudly() -> None:
    lines = report({"tests/a.py::test_two"}, {"tests/a.py::test_one": "the moon"})
    assert lines[0] == "*** FLAKY, AND NOT KNOWN TO BE: tests/a.py::test_two"
    assert "tests/known_flaky.toml" in lines[-1]


def test_only_what_passed_then_is_reported_and_no_record_is_no_failure(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text('{"tests/a.py::test_one": true, "tests/a.py::test_two": true}')
    for record, expected in (('{"tests/a.py::test_two": true}', ["test_one"]), (None, ["test_one", "test_two"])):
        after.unlink(missing_ok=True)
        if record:
            after.write_text(record)
        words = [sys.executable, "-m", "tests.flaky", str(before), str(after)]
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert [line.rpartition("::")[2] for line in said.splitlines() if "::" in line] == expected


def test_each_known_one_exists_and_has_a_cause() -> None:
    for test, cause in causes(KNOWN).items():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), f"there is no {test}"
        assert len(cause.split()) > 3, f"{test}: say why"
