"""The Python reference lists the public modules, and documents and examples import from nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.hooks.python_names import MODULES

import paceline

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference/python.md"
WITHOUT_A_SECTION = {"paceline.errors", "paceline.testing.plugin"}
"""Public, and listed elsewhere: in the tree of errors, and in the guide to testing."""
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def public_modules() -> set[str]:
    section = REFERENCE.read_text("utf-8").split("## Public modules")[1].split("## ")[0]
    return set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE))


def programs() -> Iterator[tuple[Path, str]]:
    """Every block of Python in the documents, and every example."""
    for path in DOCUMENTS:
        for indent, code in BLOCK.findall(path.read_text("utf-8")):
            yield path, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path, path.read_text("utf-8")


def imports(code: str) -> Iterator[tuple[str, str | None]]:
    """The modules of paceline that a program imports, each with a name of it or None."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "paceline")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "paceline":
            yield from ((str(node.module), alias.name) for alias in node.names)


IMPORTS = sorted({(module, name or "") for _, code in programs() for module, name in imports(code)})


def test_the_reference_lists_the_modules_it_describes() -> None:
    assert public_modules() == set(MODULES) | WITHOUT_A_SECTION


def test_public_modules_exist() -> None:
    for name in public_modules():
        assert importlib.import_module(name).__doc__, name


def test_the_documents_import_something() -> None:
    assert len(IMPORTS) > 30


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_documents_and_examples_import_public_names_only(module: str, name: str) -> None:
    public = public_modules()
    assert module in public or f"{module}.{name}" in public, f"{module} is not listed in {REFERENCE.name}"
    if module == "paceline" and name and f"paceline.{name}" not in public:
        assert name in paceline.__all__
    elif name:
        assert not name.startswith("_")
        assert hasattr(importlib.import_module(module), name)
