"""The page "How a request flows" names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/how-a-request-flows.md"
SOURCE = ROOT / "src/paceline"
APPS = ROOT / "apps"
NAMED = re.compile(r"`([\w/]+\.(?:py|lua))(?::([\w.]+))?`")
REFERENCES = sorted({(path, name) for path, name in NAMED.findall(PAGE.read_text("utf-8")) if path != "ports.py"})


def names_in(path: Path) -> set[str]:
    """The module's functions, classes and methods, the latter as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{method.name}" for method in methods)
    return names


def test_the_page_names_files_of_every_feature() -> None:
    folders = {path.split("/")[0] for path, _ in REFERENCES}
    assert {"payments", "sms", "dispatch", "kafka", "limits", "redis", "server", "slots", "sql"} <= folders


@pytest.mark.parametrize(("path", "name"), REFERENCES, ids=lambda value: value or "-")
def test_what_the_page_names_exists(path: str, name: str) -> None:
    app, _, rest = path.partition("/")
    file = APPS / app / f"src/paceline_{app}" / rest if (APPS / app).is_dir() else SOURCE / path
    assert file.is_file(), f"{PAGE.name} names {path}, which is neither in src/paceline nor in apps"
    if name:
        assert name in names_in(file), f"{PAGE.name} names {path}:{name}, which is not there"
