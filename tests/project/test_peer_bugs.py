"""The page about peers' bugs names every file that holds a test against one, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "peer-bugs.md"


def files_against(bug: int) -> set[str]:
    """The files below `tests` with a test that is named after a bug."""
    named = re.compile(rf"^(?:async )?def test_peer_bug_{bug:02}_\w+", re.MULTILINE)
    return {
        str(path.relative_to(ROOT / "tests"))
        for path in (ROOT / "tests").rglob("test_*.py")
        if named.search(path.read_text("utf-8"))
    }


@pytest.mark.parametrize("bug", range(1, 14))
def test_the_page_lists_where_a_bug_is_tested(bug: int) -> None:
    (row,) = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| {bug}. ")]
    listed = set(re.findall(r"`([\w/]+\.py)`", row))
    assert listed
    assert listed == files_against(bug)


def test_all_are_named_alike() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_peer_bug\w*)", path.read_text("utf-8"), re.MULTILINE):
            assert re.fullmatch(r"test_peer_bug_(0[1-9]|1[0-3])_\w+", name), f"{path.name}: {name}"
