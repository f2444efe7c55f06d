"""Fills the reference pages when the site is built: a line `<!-- generated: NAME -->` becomes what the code says."""

from __future__ import annotations

import inspect
import re
from typing import Any

import command_line
import http_operations
import metric_names
import python_names

from headgate import errors


def error_tree() -> str:
    """The tree that stands in the docstring of `headgate.errors`."""
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
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_context: Any) -> str:
    """Called by MkDocs for every page."""
    return MARK.sub(lambda found: GENERATORS[found[1]](), markdown)
