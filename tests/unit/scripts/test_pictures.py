"""Each picture of the console in the documents is one that `make pictures` takes, and each of those is shown."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.pictures import IMAGES, PICTURES

ROOT = Path(__file__).parents[3]


def test_pictures_are_made_and_shown() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/(console-[a-z-]+)\.png", page.read_text())}
    assert shown == set(PICTURES)
    assert {path.stem for path in IMAGES.glob("console-*.png")} == set(PICTURES)
