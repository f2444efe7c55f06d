"""The documents' Python: its types hold in strict mode, and it imports public names only."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.documents import Block, blocks

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
UNTYPED = "# mypy: allow-subclassing-any\n"
"""Django publishes no types, and its views are there to be subclassed."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _programs() -> list[tuple[Path, Block]]:
    return [
        (page, block)
        for page in PAGES
        for block in blocks(page)
        if block.language == "python" and not block.not_run and not block.peer
    ]


def _public() -> dict[str, set[str]]:
    """Every public module, as the reference lists them, with its names."""
    spec = importlib.util.spec_from_file_location("python_names", ROOT / "docs" / "hooks" / "python_names.py")
    assert spec is not None
    assert spec.loader is not None
    listing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(listing)
    return {name: set(listing._public(importlib.import_module(name))) for name in listing.MODULES}


def test_programs_import_public_names_only() -> None:
    public = _public()
    for page, block in _programs():
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "paceline":
                named = {alias.name for alias in node.names}
                unknown = named - public.get(str(node.module), set())
                assert not unknown, f"{page.name}, line {block.line}: {unknown} of {node.module} are not public"


def test_programs_have_names_of_their_own() -> None:
    titles = [block.title for _, block in _programs() if block.title]
    assert len(titles) == len(set(titles)), "the type check puts the saved programs of all pages into one folder"


def test_programs_pass_a_strict_type_check(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    places = {}
    for page, block in _programs():
        name = block.title or f"{page.stem.lower().replace('-', '_')}_{block.line}.py"
        places[name] = f"{page.relative_to(ROOT)}, line {block.line}"
        (tmp_path / name).write_text(block.text + (UNTYPED if "from django" in block.text else ""))
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", *(str(tmp_path / name) for name in sorted(places))],
        # In the root, as `make types` does it: what that has checked is not checked again.
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}\n{places}"
