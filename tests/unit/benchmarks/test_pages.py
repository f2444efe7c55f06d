"""The figures in README and docs are those of the stored results, and a target that was missed is shown as missed."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import pages, results
from benchmarks.__main__ import main, measure
from benchmarks.measure import Row, Spread, Table, Target
from benchmarks.results import Result, StoredTable, figure
from benchmarks.scale import answers

ROOT = Path(__file__).parents[3]
MET = Row("fast work", "12.3k/s", "a peer", Spread(3.0, 2.0, 4.0), Target(least=2))
MISSED = Row("  slow work", "40/s", "a|peer", Spread(0.5, 0.4, 0.6), Target(least=0.8))
MACHINE: dict[str, str | int | float] = {
    "cores": 2,
    "memoryGiB": 4.0,
    "processor": "some processor",
    "system": "Linux x86_64",
}


def result(*rows: Row) -> Result:
    measured = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    return Result("some", measured, MACHINE, 1.5, {"Python": "3.11.1"}, [StoredTable("Some", rows, ["a note"], {})])


@pytest.mark.parametrize("name", pages.PAGES)
def test_every_block_says_what_the_stored_results_say(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert pages.BLOCK.search(text), f"{name} has no block"
    assert text.count("<!-- benchmarks: ") == len(pages.BLOCK.findall(text)), "a block without an end"
    assert pages.filled(text, results.load()) == text, "fill it: python -m benchmarks --render"


def test_no_other_page_has_a_block_and_no_block_is_unused() -> None:
    used = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        names = set(re.findall(r"<!-- benchmarks: ([\w-]+) -->", path.read_text("utf-8")))
        assert not names or str(path.relative_to(ROOT)) in pages.PAGES
        used |= names
    assert used == set(pages.BLOCKS)


def test_a_figure_changed_by_hand_is_noticed() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    block = pages.BLOCK.search(text)
    assert block is not None
    changed = text.replace(block[0], re.sub(r"\d(?=[kM]/s)", "9", block[0]))
    assert changed != text
    assert pages.filled(changed, results.load()) == text


def test_a_missed_target_is_shown_as_missed() -> None:
    shown = pages.tables({"some": result(MET, MISSED)})
    assert "1 of 2 targets were met." in shown
    assert "- some: slow work: 0.50 (0.40–0.60) instead of ≥ 0.8" in shown
    assert "| … slow work | 40/s | a\\|peer | 0.50 (0.40–0.60) | ≥ 0.8 | **missed** |" in shown
    assert "| fast work | 12.3k/s | a peer | 3.00 (2.00–4.00) | ≥ 2 | met |" in shown
    assert "Measured 2030-01-02 03:04 UTC on 2 cores (some processor), 4.0 GiB, Linux x86_64, load average 1.5" in shown
    assert "; Python 3.11.1." in shown


def test_a_benchmark_that_fails_is_named_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored: list[str] = []

    def run(name: str) -> SimpleNamespace:
        tables = {"bad": lambda _: 1 / 0, "good": lambda _: [Table("Some", [MET])]}
        return SimpleNamespace(tables=tables[name.removeprefix("benchmarks.")])

    monkeypatch.setattr("importlib.import_module", run)
    monkeypatch.setattr(results, "store", lambda name, _: stored.append(name))
    tables, failed = measure(["bad", "good"], quick=False, write=True)
    assert (stored, failed, [table.title for table in tables]) == (["good"], ["bad"], ["Some"])
    assert "bad failed: ZeroDivisionError" in capsys.readouterr().out


def test_a_row_that_was_not_measured_is_shown_as_such() -> None:
    results = {name: result(MET) for name, *_ in pages.SCALE}
    assert pages.scale_figures(results).count(f"| {pages.NOT_MEASURED} | – | – |") == len(pages.SCALE)
    assert "That was not measured" in pages.scale_growth(results)


def test_what_is_stored_is_what_is_loaded(tmp_path: Path) -> None:
    table = Table("Some", [MET, MISSED], ["a note"])
    path = results.store("some", [table], tmp_path)
    loaded = results.load(tmp_path)["some"]
    assert loaded.rows == [MET, MISSED]
    assert loaded.tables[0].notes == ["a note"]
    assert set(loaded.machine) == set(MACHINE)
    assert re.fullmatch(r"[\d.]+", loaded.versions["Python"])
    assert str(ROOT) not in path.read_text()


def test_the_simulation_stands_on_the_stored_results() -> None:
    assert not answers.are_old(results.load()), "simulate anew: make scale"


def test_every_stored_result_is_of_a_table_that_can_be_repeated() -> None:
    for path in results.FOLDER.glob("*.json"):
        module = ROOT / "benchmarks" / path.stem
        assert module.is_dir() or module.with_suffix(".py").is_file(), path.name
        document = json.loads(path.read_text("utf-8"))
        assert document["name"] == path.stem
        assert document["machine"].keys() == MACHINE.keys()
        assert not re.search(r"/(?:work|root|home|tmp)\b", path.read_text("utf-8"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quick", "--write"], "its figures are not written"),
        (["--render", "slots"], "takes no names"),
        (["nothing"], "no such benchmark: nothing"),
    ],
)
def test_a_wrong_command_says_so_and_changes_nothing(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    monkeypatch.setattr(results, "store", lambda *_: pytest.fail("stored"))
    monkeypatch.setattr(pages, "render", lambda: pytest.fail("rendered"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("shown", "number"), [("58.2k/s", 58_200), ("1.6M/s", 1.6e6), ("40/s", 40), ("157 B", 157)])
def test_figures_are_read_as_they_are_shown(shown: str, number: float) -> None:
    assert figure(shown) == pytest.approx(number)
