"""Fills the reference pages when the site is built: a line `<!-- generated: NAME -->` becomes what the code says.

A Markdown extension, named in mkdocs.yml: every builder that renders with Python-Markdown runs it.
"""

from __future__ import annotations

import inspect
import re

from docs.hooks import command_line, http_operations, metric_names, python_names
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

from paceline import errors


def error_tree() -> str:
    """The tree that stands in the docstring of `paceline.errors`."""
    return (
        "```text\n"
        + "\n".join(
            line.removeprefix("    ")
            for line in inspect.cleandoc(errors.__doc__ or "").splitlines()
            if line.startswith("    ")
        )
        + "\n```"
    )


GENERATORS = {
    "http": http_operations.page,
    "cli": command_line.page,
    "metrics": metric_names.page,
    "python": python_names.page,
    "errors": error_tree,
}
MARK = re.compile(r"<!-- generated: (\w+) -->")
BEFORE_EVERY_OTHER = 1000


class Reference(Preprocessor):
    """Puts in what the marks stand for."""

    def run(self, lines: list[str]) -> list[str]:
        filled: list[str] = []
        for line in lines:
            mark = MARK.fullmatch(line)
            filled += GENERATORS[mark[1]]().splitlines() if mark else [line]
        return filled


class ReferenceExtension(Extension):
    """The marks, for Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (Python-Markdown's own name)
        md.preprocessors.register(Reference(md), "reference", BEFORE_EVERY_OTHER)


def makeExtension() -> Extension:  # noqa: N802 (Python-Markdown's own name)
    """What Python-Markdown looks for in a module."""
    return ReferenceExtension()
